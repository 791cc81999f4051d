/* Peer: which account may serve a unix socket. What an agent hands over is mapped and shown to engines, and what it
 * is given are weights: so a client first looks at who made the socket's folder, and then at who listens.
 *
 * Trusted are root, the client's own account, the account that owns /run/wsync (nobody but root can make a folder
 * there), and one that is named: by an option, or in the environment by WSYNC_AGENT_USER. Where accounts of other
 * user namespaces come as 65534 that number can be named.
 *
 * The folder has to be of such an account, and not be writable by others unless it is sticky, as /tmp is. Members
 * of its group may write it: what they put there runs under their account, which the second look refuses. */
#ifndef WS_TRANSPORTS_IPC_PEER_H
#define WS_TRANSPORTS_IPC_PEER_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <sys/types.h>

#define WS_AGENT_USER_VARIABLE "WSYNC_AGENT_USER"

struct ws_ipc_account {
    bool is_named;
    uid_t uid;
};
/* A name or a number of an account. -EINVAL: there is none of that name. */
WS_MUST_USE int ws_ipc_account_parse(const char *text, struct ws_ipc_account *out, struct ws_error *err);
/* Before connecting to the socket at path, and of the connection before anything is sent. -EPERM: an account that
 * is not trusted could have put it there, or serves it; err says which one, and what to do. 0 where there is no
 * such folder. named: from an option. -EINVAL: the environment names no account. */
WS_MUST_USE int ws_ipc_check_folder(const char *path, const struct ws_ipc_account *named,
                                    struct ws_error *err);
WS_MUST_USE int ws_ipc_check_peer(int sock, const char *path, const struct ws_ipc_account *named,
                                  struct ws_error *err);

#endif
