/* Written folder: the folder of a version while its framework writes it. It is whole when nobody has a file of it open for
 * writing any more and the commit rule (transports/format/commit_rule.h) holds; then it is published, before the call that made
 * it whole returns. Other weights that are written into it later make it whole once more. */
#ifndef WS_FS_WRITTEN_FOLDER_H
#define WS_FS_WRITTEN_FOLDER_H
#include "fs/written/written.h"

struct ws_written_folder {
    struct ws_written_folder *next;
    char name[WS_MAX_NAME + 1]; /* as it is called now; guarded by written->lock, as the next two are */
    unsigned writers;           /* open for writing, and not flushed since */
    bool is_there;
    /* Guarded by written->publishing. */
    uint64_t weights; /* what was published; 0: nothing */
    uint64_t failed;  /* what could not be; 0: nothing */
    uint64_t next_ns; /* when that is tried again */
    unsigned n_failures;
};

/* The one of that name in the top folder, which lies in memory; NULL: no memory. With lock. */
struct ws_written_folder *ws_written_folder_get(struct ws_written *w, const char *name);
/* Publishes it, if it is whole and was not published so. Without lock. */
void ws_written_folder_settle(struct ws_written *w, struct ws_written_folder *f);
/* Tries those again that could not be published. Without lock. */
void ws_written_folder_retry(struct ws_written *w);
void ws_written_folder_free_all(struct ws_written *w);

#endif
