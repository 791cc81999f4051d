/* Kept regions: what a daemon has its supervisor keep (store/keeper.h): a list of descriptors with their labels. One thread at a time. */
#ifndef WS_FS_KEPT_REGIONS_H
#define WS_FS_KEPT_REGIONS_H
#include "fs/store/keeper.h"
#include "transports/base/vector.h"

struct ws_kept_region {
    int32_t fd;
    char label[WS_KEEPER_LABEL];
};
WS_VECTOR(ws_kept_regions, struct ws_kept_region);

/* Owns fd, and closes what had that label. -1, as where no descriptor came, and no memory: it is not kept. */
void ws_kept_regions_add(struct ws_kept_regions *r, const char *label, int fd);
/* Takes it off the list: the caller's; -1: it is not there. */
int ws_kept_regions_take(struct ws_kept_regions *r, const char *label);
void ws_kept_regions_forget(struct ws_kept_regions *r, const char *label);
void ws_kept_regions_close(struct ws_kept_regions *r); /* all of them */

#endif
