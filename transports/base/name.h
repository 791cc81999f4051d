/* Names: of models, files and tensors, and what of them may become a path. Pure functions. */
#ifndef WS_TRANSPORTS_BASE_NAME_H
#define WS_TRANSPORTS_BASE_NAME_H
#include "transports/base/limits.h"
#include <stdbool.h>

/* Tensor names as file names: '/' and '%', control characters, and a leading '.' are
 * percent-encoded (%2F); names longer than WS_MAX_NAME after encoding keep their first 200 bytes
 * (fewer where that would split a character or a code) plus "%~" and the XXH3 of the name in hex.
 * Since '%' itself is encoded, two names can only meet by a collision of that hash. out has WS_MAX_NAME + 1
 * bytes. */
void ws_name_to_file(const char *name, char out[WS_MAX_NAME + 1]);
/* The same, without a copy where the name is a file's already, as nearly all are: name itself, or else out, which is
 * written then. */
const char *ws_name_as_file(const char *name, char out[WS_MAX_NAME + 1]);
/* May this become a path component: non-empty, no '/', not "." or "..", no control characters, valid
 * UTF-8, at most WS_MAX_NAME bytes. */
bool ws_name_is_safe(const char *name);
/* Does name mean the mount who (HOST:MOUNTPOINT)? "h1" means every mount of host h1, "h1:/wsync" one. */
bool ws_name_matches_mount(const char *name, const char *mount_id);
/* May a model be called this; WS_MODEL_NAME_RULE says when, for error sentences. A view's name is one, too. */
bool ws_name_is_model(const char *name);
/* "MODEL@RECIPE" is a quantised view of MODEL (transports/quant/recipe.h), which agents and mounts make and nobody
 * publishes. RECIPE is [a-z][a-z0-9-]*, so no part of a node is called so, nor a version with its run. Takes the name
 * apart; base has WS_MAX_NAME + 1 bytes, recipe is the name's own end, either may be NULL. */
bool ws_name_is_view(const char *name, char *base, const char **recipe);
#define WS_MODEL_NAME_RULE                                                                                   \
    "a model's name becomes a folder: 1 to 255 bytes of UTF-8 without '/', '@', '%' and control "            \
    "characters, "                                                                                           \
    "not beginning with a dot, and none of ctl, status, events, metrics, last_error, models, local"
/* "MODEL@INDEX.COUNT" is what one of several nodes holds of a model (transports/format/node_part.h); no
 * user's model is called so. Takes the name apart; base has WS_MAX_NAME + 1 bytes, any of the three may be
 * NULL. */
bool ws_name_is_node_part(const char *name, char *base, unsigned *index, unsigned *count);
/* May a source list a model of this name: a model's, or a part's. */
bool ws_name_is_offered(const char *name);
/* May a file of a version be called this: safe, no dot at the beginning, and not the mount's own "tensors".
 */
bool ws_name_is_file(const char *name);

#endif
