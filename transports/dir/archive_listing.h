/* Archive listing: which versions an archive (archive.h) has, what each is a delta on, and where they lie. In
 * JSON it is the catalog's listing (catalog.h) with what only an archive says:
 *
 *     {"seq":7,"static":true,"models":[{..., "versions":[
 *         {"version":9,...,"anchor":true},
 *         {"version":10,...,"anchor":false,"base":9,"base_run":"r1"}]}]}
 *
 * static: there is no agent behind it, and mounts send it no reports. anchor false: the archive has only the
 * delta from the base. Not thread safe. */
#ifndef WS_TRANSPORTS_DIR_ARCHIVE_LISTING_H
#define WS_TRANSPORTS_DIR_ARCHIVE_LISTING_H
#include "transports/base/vector.h"
#include "transports/base/version_id.h"
#include "transports/format/manifest.h"
#include <jansson.h>

#define WS_ARCHIVE_ROOT_BYTES 2048 /* longest path of an archive */
#define WS_ARCHIVE_PATH_BYTES 4096 /* of anything in it */

struct ws_archive_entry {
    struct ws_version_id id, base; /* base without a lineage: an anchor */
    char digest[33];
    uint64_t bytes, created_ns;
};

WS_VECTOR(ws_archive_entries, struct ws_archive_entry);

struct ws_archive_model {
    char name[WS_MAX_NAME + 1];
    struct ws_archive_entries entries; /* in the order in which they were committed */
};
WS_VECTOR(ws_archive_models, struct ws_archive_model);

struct ws_archive_listing {
    uint64_t seq;
    struct ws_archive_models models; /* by name */
};

static inline bool ws_archive_entry_is_anchor(const struct ws_archive_entry *e)
{
    return !e->base.lineage[0];
}

/* What a file of an archive has in JSON; new reference. NULL: it is none, or takes too much (json_size.h). */
json_t *ws_archive_json(const char *text, size_t n);
/* Of the file v1/models; path: what it is called in errors. -EBADMSG: damaged. */
WS_MUST_USE int ws_archive_listing_parse(const char *text, size_t n, const char *path,
                                         struct ws_archive_listing *out, struct ws_error *err);
void ws_archive_listing_free(struct ws_archive_listing *l);
/* model NULL: all. New reference; NULL: no memory. */
json_t *ws_archive_listing_json(const struct ws_archive_listing *l, const char *model);

struct ws_archive_model *ws_archive_listing_find_model(const struct ws_archive_listing *l, const char *name);
/* lineage NULL or empty: any; a number is there once. Valid until the listing changes. */
struct ws_archive_entry *ws_archive_listing_find(const struct ws_archive_listing *l, const char *model,
                                                 uint64_t version, const char *lineage);
/* -E2BIG: more models or versions than a mount would list. -ENOMEM. */
WS_MUST_USE int ws_archive_listing_add(struct ws_archive_listing *l, const char *model,
                                       const struct ws_archive_entry *e, struct ws_error *err);
void ws_archive_listing_remove(struct ws_archive_model *m, size_t i);

/* ROOT/v1[/MODEL[/VERSION[/what]]]; version UINT64_MAX and what NULL: left out. */
void ws_archive_path(char out[WS_ARCHIVE_PATH_BYTES], const char *root, const char *model, uint64_t version,
                     const char *what);

#endif
