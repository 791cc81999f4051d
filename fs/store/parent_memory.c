#include "fs/store/parent_memory.h"
#include <stdlib.h>
#include <string.h>

struct ws_parent_memory *ws_parent_memory_find(struct ws_parent_memory *list, const char *model)
{
    struct ws_parent_memory *k = list;

    while (k && strcmp(k->model, model) != 0)
        k = k->next;
    return k;
}

struct ws_parent_memory *ws_parent_memory_add(struct ws_parent_memory **list, const char *model)
{
    struct ws_parent_memory *k = ws_parent_memory_find(*list, model);

    if (k)
        return k;
    k = calloc(1, sizeof(*k));
    if (!k || !(k->model = strdup(model))) {
        free(k);
        return NULL;
    }
    k->next = *list;
    *list = k;
    return k;
}

void ws_parent_urls_clear(char **list, unsigned *n)
{
    while (*n > 0)
        free(list[--*n]);
}

bool ws_parent_urls_add(char **list, unsigned *n, const char *url)
{
    for (unsigned i = 0; i < *n; i++)
        if (strcmp(list[i], url) == 0)
            return true;
    if (*n == WS_PARENT_URLS || !(list[*n] = strdup(url)))
        return false;
    ++*n;
    return true;
}

void ws_parent_memory_free(struct ws_parent_memory **list)
{
    for (struct ws_parent_memory *k; (k = *list);) {
        *list = k->next;
        ws_parent_urls_clear(k->urls, &k->n);
        ws_parent_urls_clear(k->blamed, &k->n_blamed);
        free(k->model);
        free(k);
    }
}
