#include "transports/protocol/listing.h"
#include "transports/base/name.h"

#define MODELS "models"
#define VIEWS  "views"

void ws_listing_split(json_t *listing)
{
    json_t *models = json_object_get(listing, MODELS), *views = NULL;
    for (size_t i = 0; i < json_array_size(models);) {
        json_t *model = json_array_get(models, i);
        const char *name = json_string_value(json_object_get(model, "name"));
        if (!name || !ws_name_is_view(name, NULL, NULL)) {
            i++;
            continue;
        }
        if (!views && !(views = json_array()))
            return;
        json_array_append(views, model);
        json_array_remove(models, i);
    }
    if (views)
        json_object_set_new(listing, VIEWS, views);
}

void ws_listing_join(json_t *listing)
{
    json_t *models = json_object_get(listing, MODELS), *views = json_object_get(listing, VIEWS);
    if (!json_is_array(models) || !json_is_array(views))
        return;
    json_array_extend(models, views);
    json_object_del(listing, VIEWS);
}
