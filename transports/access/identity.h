/* Identity: who a client is, and what it may do. A client is known by a token, by a certificate, by its account
 * on this host (the unix socket), or not at all. */
#ifndef WS_TRANSPORTS_ACCESS_IDENTITY_H
#define WS_TRANSPORTS_ACCESS_IDENTITY_H
#include "transports/access/role.h"
#include "transports/base/limits.h"
#include <stdbool.h>
#include <sys/types.h>

#define WS_IDENTITY_CHARS 128 /* of a name */
#define WS_IDENTITY_RULE  "1 to 128 letters, digits and . _ - @ : / +, the first a letter or digit"
#define WS_MODELS_CHARS   512 /* of all patterns */
#define WS_FROM_CHARS     96  /* of an address */

#define WS_IDENTITY_ANYBODY "anonymous"  /* where an operator says --insecure */
#define WS_IDENTITY_SHARED  "token-file" /* who has the one token of --token-file */
#define WS_IDENTITY_LOCAL   "local"      /* who can read the token that a server on loopback made */
#define WS_IDENTITY_CERT    "cert:"      /* a certificate's name, where there is no tokens file */
#define WS_IDENTITY_UID     "uid:"       /* an account, by the unix socket */

struct ws_identity {
    char name[WS_IDENTITY_CHARS + 1]; /* empty: it is not known who this is */
    bool is_shared;                   /* many have it: the name does not tell one mount from another */
    unsigned roles;
    char models[WS_MODELS_CHARS + 1]; /* patterns with commas between: actor*,critic; empty: all models */
    char from[WS_FROM_CHARS]; /* where its request came from, as the audit log has it; empty: not known */
};

/* WS_IDENTITY_RULE, and none of the names that wsync gives: WS_IDENTITY_..., cert:NAME, uid:N. */
bool ws_identity_is_name(const char *text, size_t n);
/* Patterns of models: * stands for any text. */
bool ws_identity_are_models(const char *text, size_t n);
/* May it use this model? Of MODEL@..., which is a part or a view of MODEL, that decides. */
bool ws_identity_may_use(const struct ws_identity *i, const char *model);
bool ws_identity_has_all_models(const struct ws_identity *i);
/* Whose name a mount's reports are kept under: "" of a shared identity. */
const char *ws_identity_owner(const struct ws_identity *i);
/* Of a peer of a unix socket that belongs to this process. Root and this process's own account may do all that
 * there is; who else the socket's mode and group let in may publish, read, report and release. */
void ws_identity_of_uid(uid_t uid, struct ws_identity *out);
/* 0, or: may this identity use a route of this role, for this model (NULL: it is of none, "": of all)? -EACCES:
 * nothing says who this is; -EPERM: it may not, and err says what is lacking. what: "POST /v1/actor/42/release". */
WS_MUST_USE int ws_identity_check(const struct ws_identity *i, unsigned role, const char *model,
                                  const char *what, struct ws_error *err);

#endif
