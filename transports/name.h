/* Names: of models, files and tensors, and what of them may become a path. Pure functions. */
#ifndef WS_TRANSPORTS_NAME_H
#define WS_TRANSPORTS_NAME_H
#include "transports/limits.h"

/* Tensor names as file names: '/' and '%', control characters, and a leading '.' are
 * percent-encoded (%2F); names longer than WS_MAX_NAME after encoding keep their first 200 bytes
 * (fewer where that would split a character or a code) plus "%~" and the XXH3 of the name in hex.
 * Since '%' itself is encoded, two names can only meet by a collision of that hash. out has WS_MAX_NAME + 1
 * bytes. */
void ws_name_to_file(const char *name, char out[WS_MAX_NAME + 1]);
/* Is this a legal model, version-bundle-file name: non-empty, no '/', not "." or "..", no control
 * characters, valid UTF-8, at most WS_MAX_NAME bytes. */
int ws_name_is_safe(const char *name);

#endif
