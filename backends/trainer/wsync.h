/* wsync: the public C API of the trainer's side (libwsync).
 *
 * A publisher is one rank's connection to its node's agent. Each step it copies its parameters into
 * the agent's free slot; when every rank has committed, the version is announced and never changes.
 *
 *     wsync_publisher *pub;
 *     struct wsync_config config = { .struct_size = sizeof config, .model = "actor", .world_size = 1 };
 *     if (wsync_open(&config, &pub) < 0) die(wsync_error());
 *     for (uint64_t step = 1;; step++) {
 *         train();
 *         if (wsync_offload(pub, params, n, step) < 0) warn(wsync_error());   // may be written again now
 *     }
 *     wsync_close(pub);
 *
 * Errors: functions return 0 (or a count) or -errno, and wsync_error() has a sentence for people, per
 * thread. Threads: one publisher is used by one thread at a time; different publishers are
 * independent. Nothing given to a call is kept after it returns, unless it says so.
 * ABI: structs carry struct_size = sizeof, so that they can grow; zero means the default. */
#ifndef WSYNC_H
#define WSYNC_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WSYNC_VERSION_MAJOR 0
#define WSYNC_VERSION_MINOR 1
#define WSYNC_MAX_DIMS      8

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* Safetensors' element types. */
typedef enum wsync_dtype {
    WSYNC_BOOL,
    WSYNC_U8,
    WSYNC_I8,
    WSYNC_F8_E5M2,
    WSYNC_F8_E4M3,
    WSYNC_F8_E8M0,
    WSYNC_F8_E4M3FNUZ,
    WSYNC_F8_E5M2FNUZ,
    WSYNC_F4,
    WSYNC_F6_E2M3,
    WSYNC_F6_E3M2,
    WSYNC_I16,
    WSYNC_U16,
    WSYNC_F16,
    WSYNC_BF16,
    WSYNC_I32,
    WSYNC_U32,
    WSYNC_F32,
    WSYNC_F64,
    WSYNC_I64,
    WSYNC_U64,
    WSYNC_C64
} wsync_dtype;

/* A part of a tensor that one rank holds. A BOX is an n-dimensional slice: offset and size per
 * dimension of the global shape, strides in elements of the source (all zero: contiguous). A RANGE is
 * `start`, `count` elements of the row-major flattened tensor, contiguous in the source (ZeRO's
 * partitions). WHOLE is the box of everything. */
typedef enum wsync_piece_kind { WSYNC_WHOLE, WSYNC_BOX, WSYNC_RANGE } wsync_piece_kind;
typedef struct wsync_piece {
    wsync_piece_kind kind;
    uint64_t offset[WSYNC_MAX_DIMS], size[WSYNC_MAX_DIMS];
    int64_t strides[WSYNC_MAX_DIMS];
    uint64_t start, count;
} wsync_piece;

/* One piece of one parameter. A rank that holds several pieces of a tensor passes several entries of
 * one name. data may be NULL when only registering. */
typedef struct wsync_param {
    const char *name;  /* the file's tensor name (Hugging Face's) */
    wsync_dtype dtype; /* of the source and of the file */
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS]; /* global */
    const void *data;               /* host memory; first element of the piece */
    wsync_piece piece;
    const char *file; /* shard file it goes to; NULL: by shard_bytes */
} wsync_param;

typedef struct wsync_config {
    size_t struct_size;
    const char *agent;         /* "unix:/run/wsync/agent.sock" (the default), or $WSYNC_AGENT */
    const char *model;         /* required; one path component */
    const char *run;           /* lineage id; NULL: the model's live one, or a new random one */
    int new_run;               /* open a new lineage: its versions supersede the present one's */
    unsigned rank, world_size; /* of the whole trainer, over all its nodes; world_size 0 is 1 */
    const char *base;          /* checkpoint folder that fills tensors that no rank holds ("frozen") */
    const char *sidecars;      /* folder whose config.json, tokenizer files, ... go along (rank 0) */
    uint64_t shard_bytes;      /* 0: one model.safetensors */
    unsigned max_slots;        /* 0: 2, growing to 3 while a reader by ipc holds the older one */
    unsigned n_threads;        /* copying threads; 0: min(cores, 8) */
    unsigned timeout_ms;       /* waiting for the other ranks and for a slot; 0: 60 s */
    /* progress of long calls: done and total bytes; may be NULL. Called on the calling thread. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
} wsync_config;

typedef struct wsync_publisher wsync_publisher;

/* Connects. -ECONNREFUSED, -ENOENT: no agent there; -EINVAL. */
int wsync_open(const wsync_config *config, wsync_publisher **out);
/* Coarse: registers when the metadata changed, then begin, put of everything, commit. When it
 * returns the sources may be written again; the version is announced once all ranks have committed
 * and every block is hashed (wsync_wait_published). data must be set in every entry.
 * -EEXIST: the version is not higher than the newest of this lineage (see new_run); -EBUSY: no free
 * slot, the text names the holder; -EPROTO: ranks disagree about a tensor; -EINVAL: a box out of
 * range, pieces that overlap, bytes that nobody holds; -ENOMEM: does not fit, with the figures. */
int wsync_offload(wsync_publisher *pub, const wsync_param *params, size_t n, uint64_t version);
/* The same in steps. register: this rank's pieces (collective: waits for every rank). put: copies one
 * registered piece; any order, each once. commit: this rank is done; -ENODATA when bytes are missing,
 * with the first name. abandon: gives the begun version up (all ranks get -ECANCELED). */
int wsync_register(wsync_publisher *pub, const wsync_param *params, size_t n);
int wsync_begin(wsync_publisher *pub, uint64_t version);
int wsync_put(wsync_publisher *pub, const wsync_param *param);
int wsync_commit(wsync_publisher *pub);
int wsync_abandon(wsync_publisher *pub);
/* Waits until `version` is announced; until the engines of mounts serve it (or a later one of this lineage):
 * who is NULL or "all", every mount that follows or has engines and is not silent, one at least; "N", a
 * number of them; or a mount's name (HOST or HOST:MOUNTPOINT). -ETIMEDOUT, with who is missing; -ECANCELED:
 * it was abandoned. timeout_ms -1: no limit. */
int wsync_wait_published(wsync_publisher *pub, uint64_t version, int timeout_ms);
int wsync_wait_loaded(wsync_publisher *pub, uint64_t version, const char *who, int timeout_ms);
/* The lineage that this publisher writes; valid until close. */
const char *wsync_run(const wsync_publisher *pub);
/* Abandons what is begun and disconnects; NULL is fine. */
void wsync_close(wsync_publisher *pub);
/* --- engines, for those who have a path and no mount; nothing is kept between calls --- */

/* An inference server. Zeroes are defaults. */
typedef struct wsync_engine {
    const char *kind;    /* "sglang" or "vllm"; not looked at by the functions that name one */
    const char *url;     /* http(s)://HOST:PORT, no credentials in it; likewise */
    const char *version; /* what it is told that it serves; NULL: "default" */
    const char *token;   /* bearer, or NULL */
    const char
        *pause_mode;     /* sglang: retract (default), abort, in_place; vllm: keep (default), wait, abort */
    unsigned timeout_ms; /* of the load; 0: 300 s */
} wsync_engine;
typedef struct wsync_engine_result {
    int rc;               /* 0 or -errno */
    double pause_seconds; /* from the pause to the resume */
    char error[1024];     /* a sentence, and how it was left; empty on success */
} wsync_engine_result;
/* Pauses the engine, lets it load the folder at path (absolute, as it sees it), asks it what it serves and
 * resumes it. When the load fails, it loads back what it served before, where that can be known; it is never
 * resumed without a load that it confirmed. options: all but kind and url; may be NULL. -EREMOTEIO: it
 * refused or failed; -EHOSTUNREACH, -ETIMEDOUT, -EACCES, -EPROTO: no such server; -EINVAL. Thread safe. */
int wsync_update_sglang_weights_from_disk(const char *url, const char *path, const wsync_engine *options);
int wsync_update_vllm_weights_from_disk(const char *url, const char *path, const wsync_engine *options);
/* The same for n engines at once, each by itself. Fills results[n]. Returns how many failed (wsync_error: the
 * first of them), or -ENOMEM, -EAGAIN: nothing was started. */
int wsync_sync_weights_to_engines(const wsync_engine *engines, size_t n, const char *path,
                                  wsync_engine_result *results);

/* Last error's sentence on this thread; never NULL. */
const char *wsync_error(void);
/* "0.1.0" */
const char *wsync_version(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
