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
 * independent. A child made by fork cannot use its parent's (-EPERM) and may close it. Nothing given to a
 * call is kept after it returns, unless it says so. ABI: structs carry struct_size = sizeof, so that they can
 * grow; zero means the default. */
#ifndef WSYNC_H
#define WSYNC_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WSYNC_VERSION_MAJOR 0
#define WSYNC_VERSION_MINOR 2
#define WSYNC_MAX_DIMS      8
#define WSYNC_NO_AUDIT      (-1) /* wsync_config.audit */

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
 * dimension of the global shape, strides in elements of the source (all zero: contiguous, unless `strided`
 * says that they are meant: one element that is repeated). A RANGE is `start`, `count` elements of the
 * row-major flattened tensor, contiguous in the source (ZeRO's partitions). WHOLE is the box of everything.
 */
typedef enum wsync_piece_kind { WSYNC_WHOLE, WSYNC_BOX, WSYNC_RANGE } wsync_piece_kind;
typedef struct wsync_piece {
    wsync_piece_kind kind;
    uint64_t offset[WSYNC_MAX_DIMS], size[WSYNC_MAX_DIMS];
    int64_t strides[WSYNC_MAX_DIMS];
    uint64_t start, count;
    int strided;
} wsync_piece;

/* One piece of one parameter. A rank that holds several pieces of a tensor passes several entries of
 * one name. data may be NULL when only registering. */
typedef struct wsync_param {
    const char *name;  /* the file's tensor name (Hugging Face's) */
    wsync_dtype dtype; /* of the file, and of the source unless it converts */
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS]; /* global */
    /* First element of the piece, in host memory or a GPU's (that is found out by itself). */
    const void *data;
    wsync_piece piece;
    const char *file; /* shard file it goes to; NULL: by shard_bytes */
    /* 0: data is of dtype. 1: data is of data_dtype, strides count its elements, and becomes dtype in the
     * copy: between F32, BF16 and F16, or equal ones; everything else (F8, integers) goes as it is, and
     * asking for it is -EINVAL. Rounded to nearest, ties to even. What is too large for dtype becomes
     * infinite, see wsync_overflows. Every NaN that is narrowed becomes one quiet NaN with its sign kept,
     * 0x7fc0 in BF16, 0x7e00 in F16: others do not agree on a pattern (torch's BF16 is 0xffff on a CPU,
     * 0x7fff on a GPU), and one of our own makes equal sources equal bytes. */
    int converts;
    wsync_dtype data_dtype;
    /* data on a GPU: the stream (CUstream, cudaStream_t; NULL: the default one) whose work writes it. Copies
     * wait for what is in it when they are asked for, on a stream of their own. */
    void *stream;
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
    unsigned max_slots;        /* 0: the agent's; 2, and more while readers on its host keep their memory */
    unsigned n_threads;        /* copying threads; 0: min(cores, 8) */
    unsigned timeout_ms; /* waiting for the other ranks and for a slot; 0: 60 s. An agent that does not answer
                          * at all is given 30 s more (and in begin what memory for a slot takes), then the
                          * call ends with -ETIMEDOUT and the next offload connects anew */
    /* progress of long calls: done and total bytes; may be NULL. Called on the calling thread. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
    /* Parameters on GPUs are offered to processes of this host there, too, device to device (wsync_map_gpu):
     * "cuda_ipc": the parameters' own memory, nothing is copied, and the caller must not change it before
     * wsync_unshare; "packed_cuda_ipc": one buffer a dtype and device, two of them in turn, which takes twice
     * the size of what this rank holds on the device; NULL: they are not. What is in host memory is not in
     * it. In steps, what wsync_put was given stays until wsync_commit. Memory that cannot be shared (pools)
     * is -EOPNOTSUPP by cuda_ipc; no driver is wsync_open's -ENOTSUP; a version whose buffer
     * somebody still has after two seconds is not shared, on demand -EBUSY, with who. */
    const char *share;
    /* With share: the host's slot is filled only when somebody reads the version's files. A version that
     * nobody has read is gone once its memory on the GPU is given up. By wsync_offload only, with all ranks
     * on one node; a thread of its own copies what is asked for, in turns with the publisher's calls. */
    int on_demand;
    /* Keeps the last published bytes on the GPU and copies what has changed only; by itself all of it where
     * more than a third has. Of blocks of 4 MiB of a file that this rank fills alone, from one device: what
     * it shares with others goes as usual. Takes as much memory there as those blocks have, and up to 300 MB
     * to compare with; where that would leave less than a sixteenth of the device, or what `share` wants
     * lacks it, it is given up, as wsync_gpu_report says. */
    int gpu_delta;
    /* Audits: pieces that several ranks hold (replicas) are hashed by each of them and compared at the agent;
     * that finds diverged replicas, gathers of stale memory and wrong shardings, whatever their cause. A
     * difference abandons the version, and says which ranks differ in which elements of which tensor: the
     * rank that commits last gets -ECANCELED, the others hear it from the waits. 0: the first version after
     * each registration, all of it; N: also every N-th after it, of which each rank hashes a share, another
     * one each time, so that all together hash at most half of what is offloaded; WSYNC_NO_AUDIT: none. What
     * rank 0 says counts. */
    int audit;
    int audit_warns; /* a difference is logged by the agent, and the version published all the same */
    /* Asked on the calling thread twice a second while a call waits for the agent, so for other ranks or a
     * slot; may be NULL. Not 0: the call ends with -EINTR, what it has begun is abandoned, and the next
     * offload connects anew. */
    int (*interrupted)(void *arg);
    void *interrupted_arg;
} wsync_config;

typedef struct wsync_publisher wsync_publisher;

/* Connects. -ECONNREFUSED, -ENOENT: no agent there; -EINVAL. */
int wsync_open(const wsync_config *config, wsync_publisher **out);
/* Coarse: registers when the metadata changed, then begin, put of everything, commit. When it
 * returns the sources may be written again; the version is announced once all ranks have committed
 * and every block is hashed (wsync_wait_published). data must be set in every entry.
 * -EEXIST: the version is not higher than the newest of this lineage (see new_run), or this rank has shared
 * it on demand already; -EBUSY: no free slot, the text names the holder; -EPROTO: ranks disagree about a
 * tensor or the version, or the agent is of another release; -EINVAL: a box out of range, pieces that
 * overlap, bytes that nobody holds; -ENOMEM: does not fit, with the figures; -ECANCELED: another rank died or
 * went on to a higher version, which is named, or an audit found that replicas differ, maybe before this rank
 * began it; -ETIMEDOUT: ranks that are missing, likewise. -ECONNRESET, -ECONNREFUSED, -ENOENT: the agent has
 * gone; the next offload connects to the one that runs then, and the lineage goes on. After any of these the
 * last version is served and the next offload may be called. */
int wsync_offload(wsync_publisher *pub, const wsync_param *params, size_t n, uint64_t version);
/* The same in steps. register: this rank's pieces (collective: waits for every rank). put: copies one
 * registered piece; any order, each once. commit: this rank is done; -ENODATA when bytes are missing,
 * with the first name. abandon: gives the begun version up (all ranks get -ECANCELED). */
int wsync_register(wsync_publisher *pub, const wsync_param *params, size_t n);
int wsync_begin(wsync_publisher *pub, uint64_t version);
int wsync_put(wsync_publisher *pub, const wsync_param *param);
int wsync_commit(wsync_publisher *pub);
int wsync_abandon(wsync_publisher *pub);
/* How many finite elements became infinite where this rank converted them, in the version that was begun (or
 * offloaded) last; *first: the name of the first such parameter in the order of registering, valid until the
 * next registering, NULL: none. first may be NULL. */
uint64_t wsync_overflows(const wsync_publisher *pub, const char **first);
/* Waits until `version` is announced; until the engines of mounts serve it (or a later one of this lineage):
 * who is NULL or "all", every mount that follows or has engines and is not silent, one at least; "N", a
 * number of them; or a mount's name (HOST or HOST:MOUNTPOINT). -ETIMEDOUT, with who is missing; -ECANCELED:
 * it was abandoned. timeout_ms -1: no limit. */
int wsync_wait_published(wsync_publisher *pub, uint64_t version, int timeout_ms);
int wsync_wait_loaded(wsync_publisher *pub, uint64_t version, const char *who, int timeout_ms);
/* Waits until the agent has made the difference of `version` (0: of the last begun) to the one before, which
 * is what mounts fetch. -ENODATA: there will be none (it is the first, or too much has changed), and it
 * travels whole; else as wsync_wait_published. */
int wsync_wait_delta(wsync_publisher *pub, uint64_t version, int timeout_ms);
/* Name of the i-th tensor that no rank holds and that comes from config's base; NULL: there are no more.
 * Known on rank 0, once registered; valid until the next registration. */
const char *wsync_frozen(const wsync_publisher *pub, size_t i);
/* The lineage that this publisher writes; valid until close. */
const char *wsync_run(const wsync_publisher *pub);
/* Abandons what is begun and disconnects; NULL is fine. */
void wsync_close(wsync_publisher *pub);

/* A published version's files on the agent's own host: the slot's memory itself, nothing is copied but where
 * the agent has no slot left for the trainer beside it. agent: "unix:PATH", NULL as in wsync_config.
 * Descriptors are read-only; a descriptor and what is mapped of it stay whole for as long as they are open,
 * and the trainer takes another slot meanwhile. -ENOENT, -ESTALE: there is no such version, or not any more;
 * -EOPNOTSUPP: the agent is not on this host. Thread safe. */
typedef struct wsync_version_files wsync_version_files;
int wsync_open_version(const char *agent, const char *model, uint64_t version, wsync_version_files **out);
/* Name of the i-th file, in name order, its descriptor (stays the version's; -1 where it is empty) and size;
 * NULL: there are no more. */
const char *wsync_version_file(const wsync_version_files *v, size_t i, int *fd, uint64_t *bytes);
/* Its lineage; valid until close. */
const char *wsync_version_run(const wsync_version_files *v);
void wsync_close_version(wsync_version_files *v); /* NULL is fine */

/* --- GPUs: versions that are shared device to device on one host --- */

/* How this publisher's last version left the GPUs, and why not faster, as one sentence for people ("3.4 GB by
 * pinned copies in 61 ms, 55 GB/s; ..."); empty: nothing was on one. Valid until the next call. */
const char *wsync_gpu_report(const wsync_publisher *pub);
/* Takes back what is shared (config's share): no process can open it any more, and this waits until every one
 * that has it has closed it or has ended. Then the parameters may be changed, with "cuda_ipc". -ETIMEDOUT
 * names who still has it (and it stays closed to others; call again). timeout_ms -1: no limit. Fine where
 * nothing is shared. wsync_close waits for nobody: what is still open then stays until the process ends. */
int wsync_unshare(wsync_publisher *pub, int timeout_ms);

/* One rank's piece of one tensor, in a GPU's memory. */
typedef struct wsync_gpu_tensor {
    const char *name;
    wsync_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS]; /* of the whole tensor */
    wsync_piece piece;              /* which part of it this is; strides are those in data */
    const void *data;               /* device memory of this process's mapping, read only by agreement */
    int device;                     /* as this process counts them */
    const char *gpu_uuid;
    /* Of data, where it is not the file's already: as in wsync_param. */
    int converts;
    wsync_dtype data_dtype;
} wsync_gpu_tensor;
typedef struct wsync_gpu_map wsync_gpu_map;
/* Opens a version's memory on the GPUs. agent: "unix:PATH", NULL as in wsync_config. version 0: the newest
 * that is shared. The trainer waits for wsync_unmap_gpu, or this process's end. -ENOENT: it is not shared
 * (any more); -ESTALE: another lineage's; -ENODEV: its device is not visible here; -EXDEV: not reachable from
 * here (another namespace, no peer access); -EBUSY: it is this process's own; -EMFILE: `ulimit -n`; -ENOTSUP:
 * no driver, or built without. Thread safe; one map by one thread at a time. */
int wsync_map_gpu(const char *agent, const char *model, uint64_t version, wsync_gpu_map **out);
uint64_t wsync_gpu_map_version(const wsync_gpu_map *map);
const char *wsync_gpu_map_run(const wsync_gpu_map *map);
/* The i-th piece, ordered by name and place; NULL beyond the last. Valid until unmap. */
const wsync_gpu_tensor *wsync_gpu_map_tensor(const wsync_gpu_map *map, size_t i);
/* Copies that piece, contiguous and in the file's dtype, to dst (host or device memory of `bytes` bytes,
 * exactly its size): done when it returns. */
int wsync_gpu_map_copy(wsync_gpu_map *map, size_t i, void *dst, size_t bytes);
/* The same for the first n pieces at once, by few launches of a kernel where the build has kernels: dst[i]:
 * device memory for the i-th, or NULL: that one is not wanted. Done when it returns; after a failure some are
 * copied. */
int wsync_gpu_map_copy_all(wsync_gpu_map *map, void *const *dst, size_t n);
void wsync_unmap_gpu(wsync_gpu_map *map); /* NULL is fine */

/* Copies bytes of an open file (of a mounted version, say) to device memory at dst, through pinned buffers,
 * by several threads: as fast as the link where the file is in memory. Done when it returns. -EINVAL: dst is
 * no device memory; -ENODATA: the file is shorter; else read's. Thread safe. */
int wsync_file_to_gpu(int fd, uint64_t offset, uint64_t bytes, void *dst);

/* --- extraction: what a training framework holds, as parameters in the names of the Hugging Face file --- */

/* One dimension of a device mesh, as torch.distributed.tensor has it: what it does to a tensor, and where
 * this rank stands on it. SHARD cuts dimension `dim` as torch.chunk does: into `size` pieces of ceil(n /
 * size), the last ones short or empty. STRIDED_SHARD first cuts into split_factor pieces and then each of
 * them, and a rank holds its share of all, one after the other: FSDP over tensor parallelism, and Megatron's
 * [gate; up]. */
typedef enum wsync_placement_kind { WSYNC_REPLICATE, WSYNC_SHARD, WSYNC_STRIDED_SHARD } wsync_placement_kind;
typedef struct wsync_placement {
    wsync_placement_kind kind;
    unsigned dim;          /* of the tensor; a flat one's is 0 */
    unsigned split_factor; /* STRIDED_SHARD */
    unsigned size;         /* of this dimension of the mesh */
    unsigned coordinate;   /* of this rank on it */
} wsync_placement;

/* A tensor as a framework holds it on this rank. Either n-dimensional: `local` sizes with `strides` (in
 * elements; all zero: contiguous, unless `strided` is set), which placements (outer mesh dimension first;
 * none: the whole tensor) make of `shape`. Or flat: a part of the row-major flattened tensor, contiguous in
 * memory: what placements make of it (ZeRO-3's partition, whose padding at the end is left alone), or without
 * placements the range [start, start + count) (a flat parameter of FSDP1, a fragment of ZeRO-1 and -2). */
typedef struct wsync_held {
    const char *name; /* the framework's own */
    wsync_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS]; /* global; Megatron: this rank's */
    int flat;
    unsigned n_placements;
    wsync_placement placements[WSYNC_MAX_DIMS]; /* Megatron: none, they follow from the name */
    uint64_t local[WSYNC_MAX_DIMS];
    int64_t strides[WSYNC_MAX_DIMS];
    uint64_t start, count;
    int strided;
    unsigned layer; /* Megatron: layer_number of the layer it is in, from 1; 0: it is in none */
    const void *data;
} wsync_held;

/* A held tensor that is several of the file: `names` side by side along dimension `dim`, equally large. With
 * `stacked`, dimension 0 counts them instead of being one of theirs, and '*' in a name is that number: what
 * transformers writes as MergeModulelist(dim=0) and Concatenate(dim=1). */
typedef struct wsync_fusion {
    const char *held;         /* how the held name ends, after a dot or whole: "mlp.experts.gate_up_proj" */
    const char *const *names; /* "mlp.experts.*.gate_proj.weight", ... in its place */
    unsigned n_names;
    int stacked;
    unsigned dim; /* of the held tensor */
} wsync_fusion;

/* Text in a held tensor's name that stands as another one in the file: ".mlp." as ".block_sparse_moe.". */
typedef struct wsync_rename {
    const char *held, *file;
} wsync_rename;

typedef struct wsync_parallel { /* this rank's place in a group; size 0 is 1 */
    unsigned rank, size;
} wsync_parallel;

typedef struct wsync_extract_options {
    size_t struct_size;
    const char *kind; /* "fsdp", "deepspeed", "megatron"; NULL: names are the file's already */
    /* config.json or its folder: Megatron's sizes, whether the embeddings are tied, the dtype; may be NULL
     * but for Megatron */
    const char *hf_config;
    /* A checkpoint folder: gives each tensor of its own that is extracted its dtype, and shapes must be its.
     */
    const char *base;
    /* Of F32, F16 and BF16 tensors in the file ("BF16"), converted in the copy. NULL: the base's, else
     * hf_config's, else as it is held. */
    const char *dtype;
    const wsync_fusion *fusions; /* fsdp, deepspeed */
    size_t n_fusions;
    const wsync_rename *renames; /* fsdp, deepspeed: each once a name, after the fusions */
    size_t n_renames;
    int tied; /* the output layer is the embedding, and the file has no tensor for it; 0: hf_config's word */
    wsync_parallel tensor, expert, expert_tensor; /* Megatron's groups */
    /* Megatron: the names of the model's options that are set; those that change a layout in a way that is
     * not known here are refused by name. */
    const char *const *features;
    size_t n_features;
} wsync_extract_options;

typedef struct wsync_extraction wsync_extraction;

/* The parameters of n held tensors, with pieces and pointers: pass them to wsync_offload. Names, shapes and
 * cuts are checked: -EINVAL names the tensor and says what does not fit; -EOPNOTSUPP what is not known to be
 * right; -ENOENT, -EBADMSG: hf_config or base cannot be read. Nothing is communicated: what a rank holds
 * is enough. Two ranks that hold the same piece both say so; one of them writes it. The caller frees it. */
int wsync_extract(const wsync_extract_options *options, const wsync_held *held, size_t n,
                  wsync_extraction **out);
/* Valid until free. */
const wsync_param *wsync_extraction_params(const wsync_extraction *e, size_t *n);
/* The same tensors at new addresses, data[i] that of held[i] in wsync_extract. */
void wsync_extraction_move(wsync_extraction *e, const void *const *data);
/* The streams that write them, streams[i] that of held[i] (wsync_param.stream); those on the host have none.
 */
void wsync_extraction_follow(wsync_extraction *e, void *const *streams);
void wsync_extraction_free(wsync_extraction *e); /* NULL is fine */

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
    const char *admin_token; /* for what changes it, where that wants another one; NULL: token */
    const char *ca_file;     /* whom to trust for https; NULL: the system's authorities */
    const char
        *cache; /* what is emptied of the old weights' keys and values: local (default), external, keep */
} wsync_engine;
typedef struct wsync_engine_result {
    int rc;               /* 0 or -errno */
    double pause_seconds; /* from the pause to the resume */
    char error[1024];     /* a sentence, and how it was left; empty on success */
} wsync_engine_result;
/* Pauses the engine, lets it load the folder at path (absolute, as it sees it), asks it what it serves,
 * empties its caches and resumes it. When the load fails, it loads back what it served before, where that can
 * be known; it is never resumed without a load that it confirmed. options: all but kind and url; may be NULL.
 * -EREMOTEIO: it refused or failed; -EHOSTUNREACH, -ETIMEDOUT, -EACCES, -EPROTO: no such server; -EINVAL.
 * Thread safe. */
int wsync_update_sglang_weights_from_disk(const char *url, const char *path, const wsync_engine *options);
int wsync_update_vllm_weights_from_disk(const char *url, const char *path, const wsync_engine *options);
/* The same for n engines at once, each by itself. Fills results[n]. Returns how many failed (wsync_error: the
 * first of them), or -ENOMEM, -EAGAIN: nothing was started. */
int wsync_sync_weights_to_engines(const wsync_engine *engines, size_t n, const char *path,
                                  wsync_engine_result *results);

/* --- chunks, strategies, requests: weight sync in SkyRL's terms, for those who carry weights themselves ---
 * Source: skyrl.backends.skyrl_train.weight_sync of release 0.3.0 and skyrl_train.weight_sync of 0.3.1
 * (WeightChunk, WeightTransferStrategy, WeightSyncInitInfo, WeightUpdateRequest). Names are theirs. Objects
 * are immutable once made, may be read by any thread, and are freed by the function beside them. */

/* torch's name of an element type: "bfloat16", and str(dtype), "torch.bfloat16". NULL: torch has none (F4,
 * F6). */
const char *wsync_dtype_name(wsync_dtype dtype);
const char *wsync_dtype_str(wsync_dtype dtype);
/* The other way, from either form. -EINVAL: no such type. */
int wsync_dtype_parse(const char *name, wsync_dtype *out);

/* One tensor of a chunk, or the piece of it that the caller holds. */
typedef struct wsync_chunk_entry {
    const wsync_param *param; /* in the caller's array */
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS]; /* of what is held: the tensor's, the box's sizes, or a range's count */
    uint64_t numel, size_bytes;
    uint64_t offset; /* bytes, in the packed layout */
} wsync_chunk_entry;
/* Tensors that are sent together: WeightChunk. */
typedef struct wsync_chunk {
    size_t n;
    const wsync_chunk_entry *entries;
    const char *module_name; /* NULL where several modules are together, or modules were not asked for */
    uint64_t total_numel, total_size_bytes;
    uint64_t packed_bytes; /* of the packed layout: total_size_bytes and the gaps */
    uint64_t alignment;    /* of the options */
    int one_dtype;         /* as packed requests need it */
    int packed;            /* the sources lie in the packed layout already: nothing need be copied */
} wsync_chunk;

typedef struct wsync_chunk_options {
    size_t struct_size;
    /* 0: whole modules together (group_by_module); 1: every entry is a chunk of its own, as theirs are for
     * broadcast. A module is a name without its last two parts, in the order of first appearance. */
    int ungrouped;
    /* Modules are added to a chunk until the next would exceed this (batch_size_threshold_gb, in bytes); a
     * module may exceed it by itself. 0: a module a chunk. Modules without bytes go along with the next one,
     * as theirs. */
    uint64_t threshold_bytes;
    /* Of each tensor in the packed layout, a power of two of at most 1 MiB: 256 is CUDA's and wsync's own. 0:
     * back to back, as theirs is; only where dtypes differ is an element put at a multiple of its own size.
     */
    uint64_t alignment;
} wsync_chunk_options;
typedef struct wsync_chunks wsync_chunks;
/* Sorts parameters (whole tensors or pieces; data may be NULL) into chunks. options may be NULL: zeroes.
 * KEPT: the array and what it points to must stay until close. -EINVAL: an entry, which is named, or an
 * option; -E2BIG. */
int wsync_chunks_open(const wsync_param *params, size_t n, const wsync_chunk_options *options,
                      wsync_chunks **out);
size_t wsync_chunks_count(const wsync_chunks *chunks);
/* NULL beyond the last one; valid until close. */
const wsync_chunk *wsync_chunks_get(const wsync_chunks *chunks, size_t i);
/* One after the other; NULL at the end, after which it begins anew. By one thread at a time. */
const wsync_chunk *wsync_chunks_next(wsync_chunks *chunks);
void wsync_chunks_close(wsync_chunks *chunks); /* NULL is fine */
/* Copies a chunk into the packed layout at dst, host memory that overlaps no source; gaps become zero.
 * -EINVAL: an entry without data; -ENOSPC: bytes is below packed_bytes. */
int wsync_chunk_pack(const wsync_chunk *chunk, void *dst, size_t bytes);

/* How weights are moved: WeightTransferStrategy. tcp, ipc and dir are wsync's own; the others are SkyRL's. */
typedef enum wsync_strategy_id {
    WSYNC_TCP,
    WSYNC_IPC,
    WSYNC_DIR,
    WSYNC_BROADCAST,
    WSYNC_CUDA_IPC,
    WSYNC_PACKED_CUDA_IPC
} wsync_strategy_id;
typedef struct wsync_strategy {
    wsync_strategy_id id;
    const char *name;           /* "packed_cuda_ipc" */
    const char *needs;          /* for people */
    const char *request_type;   /* "BroadcastWeightUpdateRequest" */
    const char *sync_info_type; /* "BroadcastInitInfo" */
} wsync_strategy;

/* What a receiver must know before the first update: WeightSyncInitInfo. In JSON a flat object with these
 * very keys; "strategy" (its name) is ours, and may be missing where the reader says which one it is. */
typedef struct wsync_source_info { /* tcp, ipc, dir */
    const char *model;
    uint64_t version;        /* 0: the newest, later ones too */
    const char *run;         /* lineage; NULL: the live one */
    const char *const *urls; /* as `wsync mount` takes them; they are tried in turn ("url" is read too) */
    size_t n_urls;
} wsync_source_info;
typedef struct wsync_broadcast_info { /* BroadcastInitInfo; 0.3.0 has not the last three: NULL */
    const char *master_addr;          /* vLLM's "master_address" is read too */
    unsigned master_port, rank_offset, world_size;
    const char *group_name, *backend, *model_dtype_str;
} wsync_broadcast_info;
typedef struct wsync_cuda_ipc_info { /* CudaIpcInitInfo; cuda_ipc, packed_cuda_ipc */
    const char *model_dtype_str;
} wsync_cuda_ipc_info;
typedef struct wsync_sync_info {
    size_t struct_size;
    wsync_strategy_id strategy;
    int override_existing_receiver;
    union {
        wsync_source_info source;
        wsync_broadcast_info broadcast;
        wsync_cuda_ipc_info cuda_ipc;
    };
} wsync_sync_info;

/* A GPU's handle of memory: opaque base64, by the device's uuid. */
typedef struct wsync_ipc_handle {
    const char *gpu_uuid, *handle;
} wsync_ipc_handle;
typedef struct wsync_update_tensor {
    const char *name;
    wsync_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS];
    const wsync_ipc_handle *handles; /* cuda_ipc that is not packed: this tensor's */
    size_t n_handles;
} wsync_update_tensor;
/* What a receiver is told of an update: WeightUpdateRequest. In JSON parallel lists, as theirs: "names",
 * "dtypes"
 * ("bfloat16"; "torch.bfloat16" and vLLM's "dtype_names" are read too), "shapes", and "sizes" in elements
 * where it is packed. "ipc_handles" is {uuid: base64} of the packed buffer, which is what release 0.3 calls
 * cuda_ipc, or a list of those, one a tensor. Handles are not pickles: theirs is base64(pickle(dict)), and
 * serialize() of 0.3 frames pickle(request); neither is written or opened here, since opening a pickle runs
 * it. "version", "run" and "alignment" are ours, and optional. */
typedef struct wsync_update_request {
    size_t struct_size;
    wsync_strategy_id strategy;
    uint64_t version; /* which it is; 0: not said; by tcp, ipc, dir that is the newest */
    const char *run;
    size_t n; /* tcp, ipc and dir may name no tensors: all of the version */
    const wsync_update_tensor *tensors;
    int packed;         /* one buffer, tensors back to back, or aligned as below; then dtypes are equal */
    uint64_t alignment; /* as in wsync_chunk_options */
    const wsync_ipc_handle *handles; /* packed cuda_ipc: the buffer's */
    size_t n_handles;
} wsync_update_request;

/* The table, from 0 on; NULL beyond its end, or where there is no such strategy. */
const wsync_strategy *wsync_strategy_at(size_t i);
const wsync_strategy *wsync_strategy_find(const char *name);
/* May it be used on this machine, by this build, with this sync info (NULL: at all)? 0, or -errno and
 * wsync_error says why not. Asks no peer: a tcp agent may be away all the same. */
int wsync_strategy_available(wsync_strategy_id id, const wsync_sync_info *info);
/* JSON of a sync info: malloc'ed, NUL-terminated text. -EINVAL: what is missing or wrong; -E2BIG. */
int wsync_sync_info_encode(const wsync_sync_info *info, char **json);
/* strategy: its name, for JSON that does not say it; NULL: the JSON must. Unknown keys are skipped. -EBADMSG:
 * with what is wrong; -EINVAL: strategy. */
int wsync_sync_info_decode(const char *json, size_t len, const char *strategy, wsync_sync_info **out);
void wsync_sync_info_free(wsync_sync_info *info);
/* tcp, ipc, dir: url i as a source for `wsync mount`, in out. -ENOTSUP: another strategy; -ERANGE: no url i;
 * -EINVAL: it is none of this strategy; -ENOSPC: bytes. */
int wsync_sync_info_source(const wsync_sync_info *info, size_t i, char *out, size_t bytes);
/* The same pair for requests. */
int wsync_update_request_encode(const wsync_update_request *request, char **json);
int wsync_update_request_decode(const char *json, size_t len, const char *strategy,
                                wsync_update_request **out);
/* The request for a chunk of whole tensors. Handles are the caller's to set, and stay the caller's. -EINVAL:
 * a piece, a dtype that torch has not, or several dtypes where the strategy packs. */
int wsync_update_request_of(const wsync_chunk *chunk, wsync_strategy_id strategy, wsync_update_request **out);
void wsync_update_request_free(wsync_update_request *request);

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
