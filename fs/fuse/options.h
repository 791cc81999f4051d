/* Options: what follows -o of a mount, in one table: parsing, help and defaults. */
#ifndef WS_FS_FUSE_OPTIONS_H
#define WS_FS_FUSE_OPTIONS_H
#include "fs/fuse/run_as.h"
#include "fs/store/store.h"
#include "transports/tcp/tcp.h"
#include <stdbool.h>
#include <sys/types.h>

enum ws_open_mode { WS_OPEN_WAIT, WS_OPEN_STREAM, WS_OPEN_LAZY };
enum ws_reads { WS_READS_AUTO, WS_READS_PASSTHROUGH, WS_READS_LINK, WS_READS_CACHED };
const char *ws_reads_name(enum ws_reads r);

struct ws_mount_options {
    char *source;     /* one or several, comma-separated */
    char *mountpoint; /* absolute */
    struct ws_store_options store;
    enum ws_open_mode open;
    enum ws_reads reads;
    bool supervised; /* fs/supervisor.h */
    unsigned hung_s; /* after which a supervised daemon without an answer is replaced; 0: never */
    struct ws_run_as run_as;
    int given;                /* given.h: what is mounted already; -1: nothing is */
    const char *given_socket; /* ... comes from there; NULL: no */
    bool allow_other, no_allow_other, prefetch, foreground, debug;
    uid_t uid;
    gid_t gid, ctl_gid; /* (gid_t)-1: none */
    mode_t mode;        /* of files; folders get the search bits that go with it */
    unsigned deadline_ms;
    const char *root, *names; /* names.h; NULL: all models, by their own names */
    char *log_file, *audit_log, *fsname, *state, *config, *host, *listen, *listen_tokens, *files;
    bool asks_parents; /* topology=auto */
    const char *rack, *peer_token, *peer_token_file;
    bool has_mode, has_uid, has_gid;    /* were given */
    const char *group;                  /* of group=; NULL: none */
    struct ws_tcp_server_options serve; /* listen NULL: it serves no other mounts */
    struct ws_trust trust;              /* verify-key=; the store's options lead to it */
    /* derived.h: views that this mount makes, and what of their layers stays as it is */
    const char *derive[WS_MAX_DERIVED], *derive_ignore[WS_MAX_DERIVE_PATTERNS];
    size_t n_derive, n_derive_ignore;
    bool derive_any_family;
    const char *needs[WS_MAX_NEEDS]; /* needs.h: of models, what this mount has of them */
    size_t n_needs;
    char *strings[160]; /* owned: what the pointers above lead to */
    size_t n_strings;
    char *tokens[8]; /* the same, in secret memory */
    size_t n_tokens;
    /* Of the sources that have one of their own, in their order, else NULL; in secret memory. */
    char *source_tokens[WS_MAX_SOURCES];
    struct ws_error why; /* of the last option that was refused, where it says more than an errno */
};

/* Defaults for this user. */
void ws_mount_options_init(struct ws_mount_options *o);
/* One -o argument ("a,b=c"); may be called several times. -EINVAL names the option and what it takes. */
WS_MUST_USE int ws_mount_options_parse(struct ws_mount_options *o, const char *text, struct ws_error *err);
/* Source and mountpoint; of the latter the name that the kernel has for it. Of a mount that somebody else makes it is a name alone, by
 * which engines and settings know it. A comma in a source separates sources. */
WS_MUST_USE int ws_mount_options_place(struct ws_mount_options *o, const char *source, const char *mountpoint,
                                       struct ws_error *err);
/* Does somebody else make the mount (given.h)? */
bool ws_mount_options_is_given(const struct ws_mount_options *o);
/* Once all options are there: adds what the file of config= says is needed of models. -EINVAL: FILE:LINE and what to do,
 * or another option excludes it; or why it cannot be read. */
WS_MUST_USE int ws_mount_options_read_needs(struct ws_mount_options *o, struct ws_error *err);
/* Has the store make its views, and take of models what is needed; before a source is added. */
WS_MUST_USE int ws_mount_options_add_views(const struct ws_mount_options *o, struct ws_store *store,
                                           struct ws_error *err);
/* Has the store read all of its sources. */
WS_MUST_USE int ws_mount_options_add_sources(const struct ws_mount_options *o, struct ws_store *store,
                                             struct ws_error *err);
void ws_mount_options_release(struct ws_mount_options *o);
/* Name (with =VALUE) and meaning of option i; false at the end. */
bool ws_mount_option_help(size_t i, const char **name, const char **meaning);

#endif
