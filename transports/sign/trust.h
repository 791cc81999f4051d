/* Trust: the public keys whose signatures a mount takes, for all models or for one each. A model with keys of its
 * own takes those alone; another takes the keys that are for all. Once there is any key, a model without one takes
 * nothing: what cannot be told is a no. Built by one thread, then only read. */
#ifndef WS_TRANSPORTS_SIGN_TRUST_H
#define WS_TRANSPORTS_SIGN_TRUST_H
#include "transports/sign/key.h"

struct ws_trusted_key {
    char *model; /* NULL: all models */
    struct ws_public_key key;
};
struct ws_trust {
    struct ws_trusted_key *keys;
    size_t n;
};
/* Adds "FILE" or "MODEL=FILE"; several with ':' between. -EINVAL: a model's name, too many keys; or what reading
 * the file says. */
WS_MUST_USE int ws_trust_add(struct ws_trust *t, const char *list, struct ws_error *err);
WS_MUST_USE int ws_trust_copy(const struct ws_trust *t, struct ws_trust *out); /* -ENOMEM */
void ws_trust_reset(struct ws_trust *t);
/* The key with that id, where it is trusted for the model (of a part: its model; of a view without keys of its own,
 * too); or NULL. */
const struct ws_public_key *ws_trust_find(const struct ws_trust *t, const char *model, const char *id);

#endif
