/* Tokens files under libFuzzer. A file that is accepted gives each line an identity that keeps the rules of names,
 * roles and models, and is found again by its hash and by its name; lines of one name allow the same. */
#include "transports/access/token_table.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void check_identity(const struct ws_identity *i)
{
    const size_t n = strlen(i->name), models = strlen(i->models);
    require(n <= WS_IDENTITY_CHARS && ws_identity_is_name(i->name, n));
    require(i->roles && !(i->roles & ~WS_ROLES_ALL) && !i->is_shared && !i->from[0]);
    require(models == 0 || (models <= WS_MODELS_CHARS && ws_identity_are_models(i->models, models)));
    require(ws_identity_has_all_models(i) == (models == 0));
    require(models > 0 || ws_identity_may_use(i, "any"));
    (void)ws_identity_may_use(i, "actor@part-1-of-2");
    require(ws_identity_check(i, WS_ROLE_OPEN, NULL, "x", NULL) == 0);
    for (unsigned role = WS_ROLE_READ; role <= WS_ROLE_ADMIN; role <<= 1)
        require((ws_identity_check(i, role, NULL, "x", NULL) == 0) == ((i->roles & role) != 0));
}

static void check_line(const struct ws_token_table *t, const struct ws_token_line *l)
{
    const struct ws_token_line *same = ws_token_table_by_name(t, l->identity.name);
    check_identity(&l->identity);
    require(l->number > 0);
    require(same && same->identity.roles == l->identity.roles &&
            strcmp(same->identity.models, l->identity.models) == 0);
    if (l->has_hash)
        require(ws_token_table_by_hash(t, &l->hash) == l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_token_table t;
    struct ws_error err = {0};
    char *text = malloc(size + 1); /* as it is read: a NUL follows */
    require(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    if (ws_token_table_parse(&t, "FILE", text, size, &err) == 0) {
        for (size_t i = 0; i < t.lines.len; i++)
            check_line(&t, &t.lines.ptr[i]);
        ws_token_table_clear(&t);
    } else {
        require(err.code > 0 && err.text[0] && !strchr(err.text, '\n') && t.lines.len == 0);
    }
    free(text);
    return 0;
}
