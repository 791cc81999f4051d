/* Local token: a server on loopback makes a token, and puts it into a file that its own account alone can read.
 * Clients of that account, and root's, find it there, so that an operator of one host needs to set up nothing,
 * and other accounts of the host read no weights.
 *
 *     /run/wsync/18861.token               root's servers, and those of the account that owns /run/wsync
 *     $XDG_RUNTIME_DIR/wsync/18861.token   other accounts'
 *     /tmp/wsync-UID/18861.token           theirs where there is no such folder
 *
 * A server holds its file by a shared lock, and removes it at its end unless another one holds it, too (of
 * 127.0.0.2, with the same port). What a server left that was killed the next one on that port uses again. Before a
 * client sends it, it checks that the file belongs to the account whose process listens on that port, and that
 * nobody else can read it: an account that took the port is sent nothing. */
#ifndef WS_TRANSPORTS_ACCESS_LOCAL_TOKEN_H
#define WS_TRANSPORTS_ACCESS_LOCAL_TOKEN_H
#include "transports/access/token_hash.h"
#include "transports/base/error.h"
#include <sys/types.h>

#define WS_LOCAL_TOKEN_PATH 256 /* room for a path */

/* The folder for files of this account's servers and sockets, made where it is not there; checked: it belongs to
 * this account, or root, and no other may write it. -EPERM: it belongs to another account. */
WS_MUST_USE int ws_local_folder(char out[WS_LOCAL_TOKEN_PATH], struct ws_error *err);
/* The token of this account's server on that port, which exists from now on; its file, and the hash. A descriptor
 * of the file, which holds it; or -EPERM, -EBUSY, errno. */
WS_MUST_USE int ws_local_token_make(unsigned port, char path[WS_LOCAL_TOKEN_PATH], struct ws_token_hash *hash,
                                    struct ws_error *err);
/* Ends the holding, and removes the file if it is still that one and no other server holds it. Before the server
 * gives up its port: the next one there would find the file just before it goes. */
void ws_local_token_end(const char *path, int held);
/* The token for a server on loopback, by its URL. False: it is not on loopback, there is none, or none that may
 * be sent there. *owner: the account that listens there. Looks at files and asks the kernel; callable from any thread. */
bool ws_local_token_find(const char *url, char secret[WS_TOKEN_SECRET_CHARS + 1], uid_t *owner);
/* Where servers of this account leave theirs; index 0, 1, ...: the next place. False: there is no other. Any thread. */
bool ws_local_token_folder(unsigned index, char out[WS_LOCAL_TOKEN_PATH]);
/* The file where that finds it. */
bool ws_local_token_file(const char *url, char path[WS_LOCAL_TOKEN_PATH + 16]);

#endif
