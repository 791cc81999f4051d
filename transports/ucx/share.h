/* Share: how many leases by ucx one identity may have. With the last ones taken by one, the mounts of another would get
 * none; so one that is alone leaves an eighth, and several have equal parts of all. Leases last as long as a pull, so
 * what one has too much comes back by itself. */
#ifndef WS_TRANSPORTS_UCX_SHARE_H
#define WS_TRANSPORTS_UCX_SHARE_H

/* most: all leases that there can be; others: identities beside it that have some. At least 1. */
unsigned ws_ucx_share(unsigned most, unsigned others);

#endif
