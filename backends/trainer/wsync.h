/* wsync: the public C API of the trainer's side (libwsync).
 *
 * A publisher is one rank's connection to its node's agent. At each step the rank copies its parameters into
 * a free slot of the agent. When every rank has committed, the version is announced and never changes.
 *
 *     wsync_publisher *pub;
 *     struct wsync_config config = { .struct_size = sizeof config, .model = "actor", .world_size = 1 };
 *     if (wsync_publisher_open(&config, &pub) < 0) die(wsync_error());
 *     for (uint64_t step = 1;; step++) {
 *         train();
 *         if (wsync_offload(pub, params, n, step) < 0) warn(wsync_error());   // may be written again now
 *     }
 *     wsync_close(pub);
 *
 * Errors: functions return 0 (or a count) or -errno, and wsync_error() has a sentence for people, per
 * thread. Threads: one publisher is used by one thread at a time; different publishers are
 * independent. A child made by fork cannot use its parent's publisher or engine client (-EPERM) and may close
 * it. Ownership: no function keeps a pointer to its arguments after it returns, unless it says so. ABI: structs
 * carry struct_size = sizeof, so that they can grow; zero means the default. */
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
#define WSYNC_MAX_SECTIONS  16
#define WSYNC_PLUS_1        2    /* wsync_param.converts */
#define WSYNC_NO_AUDIT      (-1) /* wsync_config.audit */

#if defined(__GNUC__)
#define WSYNC_DEPRECATED(text) __attribute__((deprecated(text)))
#else
#define WSYNC_DEPRECATED(text)
#endif

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
    /* First element of the piece, in host memory or a GPU's (the library finds out which). */
    const void *data;
    wsync_piece piece;
    const char *file; /* shard file it goes to; NULL: by shard_bytes */
    /* 0: data is of dtype. 1: data is of data_dtype, strides count its elements, and becomes dtype in the
     * copy: between F32, BF16 and F16, or equal ones; everything else (F8, integers) goes as it is, and
     * asking for it is -EINVAL. Rounded to nearest, ties to even. What is too large for dtype becomes
     * infinite, see wsync_overflows. Every NaN that is narrowed becomes one quiet NaN with its sign: 0x7fc0
     * in BF16, 0x7e00 in F16. Libraries do not agree on a pattern (torch's BF16 is 0xffff on a CPU, 0x7fff on
     * a GPU), and with a fixed one equal sources give equal bytes. WSYNC_PLUS_1: 1 is added to each element before,
     * and rounded to data_dtype, also where that is dtype: norms that a framework stores less one. -EOPNOTSUPP
     * with wsync_config.share. */
    int converts;
    wsync_dtype data_dtype;
    /* data on a GPU: the stream (CUstream, cudaStream_t; NULL: the default one) whose work writes it. Copies
     * run on a stream of their own and wait for the work that is in this one when they are requested. */
    void *stream;
} wsync_param;

/* A small file that goes along with a version, from memory. */
typedef struct wsync_sidecar {
    const char *name; /* "adapter_config.json"; ends as a sidecar's does: json, txt, model, tiktoken, jinja */
    const void *data;
    size_t bytes;
} wsync_sidecar;

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
    /* For waiting: for the other ranks and for a slot; 0: 60 s. An agent without any answer gets 30 s more (and
     * in begin the time to allocate a slot); then the call ends with -ETIMEDOUT, and the next offload connects
     * anew. */
    unsigned timeout_ms;
    /* Progress of long calls in bytes, on the calling thread; may be NULL. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
    /* Offers parameters on GPUs to other processes of this host, device to device (wsync_map_gpu).
     *   "cuda_ipc"         the parameters' own memory, without a copy. The caller must not change it before
     *                      wsync_unshare. Memory that cannot be shared (pools) is -EOPNOTSUPP.
     *   "packed_cuda_ipc"  copies, in one buffer for each dtype and device. Two such buffers take turns, so
     *                      it takes twice the bytes of this rank's parameters on the device.
     *   NULL               nothing is offered.
     * Parameters in host memory are not offered. Without a driver wsync_publisher_open fails with -ENOTSUP.
     * With wsync_begin and wsync_put, what was put must stay until wsync_commit. When a reader still has the
     * buffer after two seconds, the version is not shared; on demand that is -EBUSY, and the error names the
     * reader. */
    const char *share;
    /* With share: the slot on the host is filled only when a reader opens the version's files. A version
     * without readers is gone once its memory on the GPU is taken back. For wsync_offload only, with all
     * ranks on one node. A thread of the library copies requested versions, in turns with the publisher's
     * calls. */
    int on_demand;
    /* Keeps the last published bytes on the GPU and copies only what has changed, or everything where more
     * than a third has. This is for blocks of 4 MiB of a file that this rank fills alone, from one device;
     * blocks that it shares with other ranks are copied as usual. It takes as much device memory as those
     * blocks have, and up to 300 MB to compare. It is given up where that would leave less than a sixteenth
     * of the device free, or where `share` needs the memory; wsync_gpu_report says so. */
    int gpu_delta;
    /* Audits: each rank hashes the pieces that other ranks hold too (replicas), and the agent compares the
     * hashes. That finds diverged replicas, gathers of stale memory and wrong shardings. A difference
     * abandons the version, and the error names the ranks, the tensor and the elements. The rank that commits
     * last gets -ECANCELED; the others get it from the waits. Rank 0's setting applies to all.
     *   0               the first version after each registration, all replicas
     *   N               also every N-th version after it. Each rank then hashes a share, another one each
     *                   time, so that all ranks together hash at most half of the offloaded bytes
     *   WSYNC_NO_AUDIT  no audits */
    int audit;
    int audit_warns; /* a difference is only logged by the agent, and the version is published */
    /* Called on the calling thread twice a second while a call waits for the agent (for other ranks or a
     * slot); may be NULL. A result other than 0 ends the call with -EINTR: the begun version is abandoned,
     * and the next offload connects anew. */
    int (*interrupted)(void *arg);
    void *interrupted_arg;
    /* n_files small files that go along besides those of `sidecars`, and instead of those of the same names (rank
     * 0). They are copied. */
    const wsync_sidecar *files;
    size_t n_files;
    /* What matters more where parameters are in host memory: how long an offload holds the trainer up, or how soon after
     * it mounts can have the version's delta.
     *   "stall"    the offload copies. The agent compares the version with the one before afterwards
     *   "latency"  the offload compares while it copies, and the delta is there when it returns. It takes longer by about
     *              a third at usual changes, and the agent has nothing left to compare
     *   NULL       or "auto": as "latency" where readers take deltas, at most a tenth of the elements changes in a step,
     *              and the rates that were measured in this process say that it pays; else as "stall"
     * Blocks of 4 MiB of a file that several ranks fill are copied in any case, and so is what wsync_put copies and what
     * lies on GPUs (gpu_delta), and everything where this process has no descriptors left for both versions. The version
     * before is mapped meanwhile, and a line map of a 512th of the model is kept for each of the last versions, at most
     * four. */
    const char *prefer;
    /* Files of weights that all ranks together must fill, as a framework's own index names them (rank 0): a registration in which
     * one of them has no tensor is refused, -EINVAL, for all ranks. The caller's until close. */
    const char *const *expected;
    size_t n_expected;
} wsync_config;

typedef struct wsync_publisher wsync_publisher;

/* Opens a publisher: connects to the agent. The caller closes *out with wsync_close. -ECONNREFUSED, -ENOENT:
 * no agent listens there; -EINVAL: the config; -ENOTSUP: its share has no driver here. Thread safe. */
int wsync_publisher_open(const wsync_config *config, wsync_publisher **out);
/* The name of wsync_publisher_open in 0.1; to be removed after 0.2. */
WSYNC_DEPRECATED("use wsync_publisher_open")
int wsync_open(const wsync_config *config, wsync_publisher **out);
/* Publishes one version: registers where the metadata changed, begins, puts all n parameters, commits. When
 * it returns, the caller may write to the sources again. The version is announced once all ranks have
 * committed and every block is hashed (wsync_wait_published). data must be set in every entry. After an error
 * the last version is still served, and the next offload may be called.
 *   -EEXIST       the version is not higher than the newest of this lineage (see new_run), or this rank has
 *                 shared it on demand already
 *   -EBUSY        no slot is free; the error names the holder
 *   -EPROTO       ranks disagree about a tensor or the version, or the agent is of another release
 *   -EINVAL       a box is out of range, pieces overlap, or no rank holds some bytes
 *   -ENOMEM       it does not fit; the error has the figures
 *   -ECANCELED    another rank ended or went on to a higher version, or an audit found that replicas differ,
 *                 possibly before this rank began the version; the error says which
 *   -ETIMEDOUT    ranks are missing; the error names them
 *   -ECONNRESET, -ECONNREFUSED, -ENOENT
 *                 the agent has ended; the next offload connects to the agent that runs then, and the lineage
 *                 goes on */
int wsync_offload(wsync_publisher *pub, const wsync_param *params, size_t n, uint64_t version);
/* The same in steps.
 *   register  this rank's pieces; collective: waits for every rank
 *   begin     gets a slot for the version
 *   put       copies one registered piece; in any order, each once
 *   commit    this rank is done. -ENODATA: pieces were not put; the error names the first, and the version
 *             stays begun
 *   abandon   gives the begun version up; all ranks get -ECANCELED */
int wsync_register(wsync_publisher *pub, const wsync_param *params, size_t n);
int wsync_begin(wsync_publisher *pub, uint64_t version);
int wsync_put(wsync_publisher *pub, const wsync_param *param);
int wsync_commit(wsync_publisher *pub);
int wsync_abandon(wsync_publisher *pub);
/* How many finite elements became infinite when this rank converted them, in the version that was begun (or
 * offloaded) last. *first (first may be NULL): the name of the first such parameter in the order of
 * registration, NULL: none; valid until the next registration. */
uint64_t wsync_overflows(const wsync_publisher *pub, const char **first);
/* wait_published waits until `version` is announced. wait_loaded waits until the engines of mounts serve it,
 * or a later version of this lineage. mounts: NULL or "all", every mount that follows or has engines and is
 * in contact, at least one; "N", that many mounts; or the name of one (HOST or HOST:MOUNTPOINT). timeout_ms
 * -1: no limit. -ETIMEDOUT: the error names the mounts or ranks that are missing; -ECANCELED: the version was
 * abandoned. */
int wsync_wait_published(wsync_publisher *pub, uint64_t version, int timeout_ms);
int wsync_wait_loaded(wsync_publisher *pub, uint64_t version, const char *mounts, int timeout_ms);
/* Waits until the agent has made the delta from the version before to `version` (0: the last that was begun),
 * which is what mounts fetch. -ENODATA: there will be none, since it is the first version or too much has
 * changed, and mounts fetch it whole; else as wsync_wait_published. */
int wsync_wait_delta(wsync_publisher *pub, uint64_t version, int timeout_ms);
/* The name of the i-th tensor that no rank holds and that comes from config's base; NULL: beyond the last.
 * Known on rank 0 after a registration; valid until the next one. */
const char *wsync_frozen(const wsync_publisher *pub, size_t i);
/* The lineage that this publisher writes; valid until close. */
const char *wsync_run(const wsync_publisher *pub);
/* Abandons what is begun and disconnects; NULL is fine. */
void wsync_close(wsync_publisher *pub);

/* A published version's files on the agent's own host. They are the slot's memory itself; they are copied
 * only where the agent would have no slot left for the trainer. agent: "unix:PATH", NULL as in wsync_config.
 * The caller closes *out. Descriptors are read-only. A descriptor, and what is mapped of it, stays unchanged
 * for as long as it is open, and the trainer takes another slot meanwhile. -ENOENT, -ESTALE: there is no such
 * version, or not any more; -EOPNOTSUPP: the agent is not on this host. Thread safe. */
typedef struct wsync_version_files wsync_version_files;
int wsync_open_version(const char *agent, const char *model, uint64_t version, wsync_version_files **out);
/* The i-th file in name order: its name, its descriptor (owned by v; -1: the file is empty) and its size.
 * NULL: beyond the last. */
const char *wsync_version_file(const wsync_version_files *v, size_t i, int *fd, uint64_t *bytes);
/* Its lineage; valid until close. */
const char *wsync_version_run(const wsync_version_files *v);
void wsync_close_version(wsync_version_files *v); /* NULL is fine */

/* --- GPUs: versions that are shared device to device on one host --- */

/* How this publisher's last version was copied from the GPUs, and why not faster, as one sentence for people
 * ("3.4 GB by pinned copies in 61 ms, 55 GB/s; ..."). Empty: no parameter was on a GPU. Valid until the next
 * call. */
const char *wsync_gpu_report(const wsync_publisher *pub);
/* How this publisher's last offload went from host memory: "copy", or "pass, 280 blocks by lines, 8 whole, 1.50% changed"
 * (wsync_config.prefer). Empty: none did, or prefer is "stall". Valid until the next call. */
const char *wsync_offload_report(const wsync_publisher *pub);
/* Takes back what is shared on GPUs (wsync_config.share): no other process can open it from now on. Waits
 * until every reader has closed it or ended; then the parameters may be changed, with "cuda_ipc" too.
 * -ETIMEDOUT: the error names the readers; it stays closed to others, and the caller may call again.
 * timeout_ms -1: no limit. 0 where nothing is shared. wsync_close does not wait: what readers have open then
 * stays until this process ends. */
int wsync_unshare(wsync_publisher *pub, int timeout_ms);

/* One rank's piece of one tensor, in a GPU's memory. */
typedef struct wsync_gpu_tensor {
    const char *name;
    wsync_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS]; /* of the whole tensor */
    wsync_piece piece;              /* which part of it this is; strides are those in data */
    const void *data;               /* device memory, mapped in this process; must only be read */
    int device;                     /* as this process counts them */
    const char *gpu_uuid;
    /* Of data, where it is not the file's already: as in wsync_param. */
    int converts;
    wsync_dtype data_dtype;
} wsync_gpu_tensor;
typedef struct wsync_gpu_map wsync_gpu_map;
/* Opens a version's memory on the GPUs. agent: "unix:PATH", NULL as in wsync_config. version 0: the newest
 * shared one. The trainer waits for wsync_unmap_gpu, or for this process's end. Thread safe; one map by one
 * thread at a time.
 *   -ENOENT   it is not shared, or not any more
 *   -ESTALE   the version is of another lineage
 *   -ENODEV   its device is not visible to this process
 *   -EXDEV    it cannot be reached from here (another namespace, no peer access)
 *   -EBUSY    it is shared by this process itself
 *   -EMFILE   too few descriptors: see `ulimit -n`
 *   -ENOTSUP  no driver, or built without GPU support */
int wsync_map_gpu(const char *agent, const char *model, uint64_t version, wsync_gpu_map **out);
uint64_t wsync_gpu_map_version(const wsync_gpu_map *map);
const char *wsync_gpu_map_run(const wsync_gpu_map *map);
/* The i-th piece, ordered by name and place; NULL beyond the last. Valid until unmap. */
const wsync_gpu_tensor *wsync_gpu_map_tensor(const wsync_gpu_map *map, size_t i);
/* Copies that piece, contiguous and in the file's dtype, to dst (host or device memory of `bytes` bytes,
 * exactly its size): done when it returns. */
int wsync_gpu_map_copy(wsync_gpu_map *map, size_t i, void *dst, size_t bytes);
/* Copies the first n pieces, one after the other; dst[i] NULL: not that one. After a failure some are copied. Of
 * 0.1; to be removed after 0.2. */
WSYNC_DEPRECATED("call wsync_gpu_map_copy for each piece")
int wsync_gpu_map_copy_all(wsync_gpu_map *map, void *const *dst, size_t n);
void wsync_unmap_gpu(wsync_gpu_map *map); /* NULL is fine */

/* Copies `bytes` bytes of an open file (of a mounted version, say), from `offset` on, to device memory at
 * dst. Several threads copy through pinned buffers, at the speed of the link where the file is in memory. The
 * copy is complete when it returns. -EINVAL: dst is no device memory; -ENODATA: the file is shorter; else the
 * errors of read. Thread safe. */
int wsync_file_to_gpu(int fd, uint64_t offset, uint64_t bytes, void *dst);

/* --- extraction: what a training framework holds, as parameters in the names of the Hugging Face file --- */

/* One dimension of a device mesh, as torch.distributed.tensor has it: what it does to a tensor, and where
 * this rank stands on it. SHARD cuts dimension `dim` as torch.chunk does: into `size` pieces of ceil(n /
 * size), the last ones short or empty. STRIDED_SHARD first cuts into split_factor pieces and then each of
 * them, and a rank holds its share of all, one after the other: FSDP over tensor parallelism, and Megatron's
 * [gate; up]. SECTION_SHARD does that with pieces of given sizes, wsync_held.sections, which fill the
 * dimension; each must be a multiple of `size`: fused projections over tensor parallelism. */
typedef enum wsync_placement_kind {
    WSYNC_REPLICATE,
    WSYNC_SHARD,
    WSYNC_STRIDED_SHARD,
    WSYNC_SECTION_SHARD
} wsync_placement_kind;
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
 * placements the range [start, start + count) (a flat parameter of FSDP1, a fragment of ZeRO-1 and -2). A
 * flat one of Megatron's is that range of this rank's own part, flattened (its distributed optimizer's). */
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
    /* Megatron: layer_number, from 1, of the decoder's layer that it is in, or of the layer of multi-token
     * prediction; 0: it is in none */
    unsigned layer;
    const void *data;
    const uint64_t *sections; /* of SECTION_SHARD; Megatron: none, they follow from the name */
    unsigned n_sections;      /* at most WSYNC_MAX_SECTIONS */
    unsigned reserved;        /* 0 */
} wsync_held;

/* A held tensor that is several of the file: `names` side by side along dimension `dim`. With `stacked`, dimension 0
 * counts them instead of being one of theirs, and '*' in a name is that number: what transformers writes as
 * MergeModulelist(dim=0) and Concatenate(dim=1). */
typedef struct wsync_fusion {
    const char *held;         /* how the held name ends, after a dot or whole: "mlp.experts.gate_up_proj" */
    const char *const *names; /* "mlp.experts.*.gate_proj.weight", ... in its place */
    unsigned n_names;
    int stacked;
    unsigned dim;          /* of the held tensor */
    const uint64_t *sizes; /* of each along dim; NULL: they are equally large */
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
     * not known here are refused by name. "mtp_num_layers=N" also says how many layers of multi-token prediction it has:
     * with fewer than config.json's and no base it is refused. */
    const char *const *features;
    size_t n_features;
    /* PEFT's name of a LoRA adapter ("default"); of Megatron's, any name. Its tensors alone are extracted, in the names
     * that PEFT saves them under and for the file adapter_model.safetensors; other tensors are left out. NULL:
     * the model. */
    const char *adapter;
    /* sizeof(wsync_held), sizeof(wsync_fusion), which come in arrays, so that they can grow too. 0: as they are
     * in 0.2; of a program that was built with 0.1's header, as they were there. */
    size_t held_size, fusion_size;
} wsync_extract_options;

typedef struct wsync_extraction wsync_extraction;

/* Makes the parameters of n held tensors, with pieces and pointers, for wsync_offload. The caller frees *out.
 * Names, shapes and cuts are checked. -EINVAL: something does not fit; the error names the tensor;
 * -EOPNOTSUPP: a case that is not known to be right; -ENOENT, -EBADMSG: hf_config or base cannot be read. It
 * does not communicate: what a rank holds is enough. Ranks that hold the same piece all pass it, and one of
 * them writes it. */
int wsync_extract(const wsync_extract_options *options, const wsync_held *held, size_t n,
                  wsync_extraction **out);
/* Valid until free. */
const wsync_param *wsync_extraction_params(const wsync_extraction *e, size_t *n);
/* Moves the same tensors to new addresses: data[i] is that of held[i] in wsync_extract. */
void wsync_extraction_move(wsync_extraction *e, const void *const *data);
/* Sets the streams that write the tensors: streams[i] is that of held[i] (wsync_param.stream); not used for
 * tensors on the host. */
void wsync_extraction_follow(wsync_extraction *e, void *const *streams);
void wsync_extraction_free(wsync_extraction *e); /* NULL is fine */

/* --- checkpoints: safetensors files and folders of them, checked before a byte of them is used --- */

/* A tensor: of a file at its bytes [begin, end), or of a layout, where these two are not looked at. */
typedef struct wsync_tensor {
    const char *name;
    wsync_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS];
    uint64_t begin, end;
} wsync_tensor;

/* Reads the header of the safetensors file at fd, which stays the caller's; its position does not matter. All
 * of it is checked: tensors follow each other without gap or overlap up to the file's end, names are there
 * once, dtypes and shapes fit their bytes. -EBADMSG: it is no such file, or cut off, with the reason; -EINVAL:
 * no regular file; -E2BIG: over a limit; -ENOMEM; or what read says. Objects do not change and may be used by
 * any thread. */
typedef struct wsync_safetensors wsync_safetensors;
int wsync_safetensors_open(int fd, wsync_safetensors **out);
/* The i-th tensor in the order of the data; NULL: there are no more. Valid until close. */
const wsync_tensor *wsync_safetensors_tensor(const wsync_safetensors *st, size_t i);
/* __metadata__ as a JSON object of strings; NULL: it has none. Valid until close. */
const char *wsync_safetensors_metadata(const wsync_safetensors *st);
void wsync_safetensors_close(wsync_safetensors *st); /* NULL is fine */

/* Reads the index of a sharded checkpoint (model.safetensors.index.json) at fd: which tensor lies in which
 * file. Errors and threads as above. */
typedef struct wsync_index wsync_index;
int wsync_index_open(int fd, wsync_index **out);
/* The i-th tensor in the order of the index, and its file (may be NULL); NULL: there are no more. Valid until
 * close. The file is what the index says: wsync_select_weights tells whether it is one of the folder's. */
const char *wsync_index_tensor(const wsync_index *index, size_t i, const char **file);
/* Has the file, whose header is st, the tensors that the index places there, and no others? -EBADMSG names one
 * that differs. */
int wsync_index_check(const wsync_index *index, const char *file, const wsync_safetensors *st);
void wsync_index_close(wsync_index *index); /* NULL is fine */

/* Which of the n names in a folder are its weights: what the index names; without one (NULL) each *.safetensors
 * that is not hidden. Sets chosen[n] to 1 or 0. -ENOENT: there are none, or one is missing, by the index or by
 * names that count (NAME-00001-of-00005.safetensors); -ENOMEM. Thread safe. */
int wsync_select_weights(const char *const *names, size_t n, const wsync_index *index, unsigned char *chosen);

/* How one layout differs from another, as a mount's switch compares them. */
typedef enum wsync_difference_kind { WSYNC_MISSING, WSYNC_EXTRA, WSYNC_DIFFERS } wsync_difference_kind;
typedef struct wsync_difference {
    wsync_difference_kind kind;
    const char *name;
    const char *text; /* "F32 [2,3]", or "F32 [2,3], was BF16 [2,3]" */
} wsync_difference;
typedef struct wsync_differences wsync_differences;
/* May `have` (to be loaded) take the place of `want` (served)? Names, dtypes and shapes are compared, in any
 * order. Returns how many differences there are; *out is the caller's to free. -EINVAL: a tensor without a
 * name, or with an unknown dtype; -ENOMEM. Thread safe. */
int wsync_layout_compare(const wsync_tensor *have, size_t n_have, const wsync_tensor *want, size_t n_want,
                         wsync_differences **out);
/* The i-th in the order of names; NULL: there are no more. Valid until free. */
const wsync_difference *wsync_difference_at(const wsync_differences *d, size_t i);
void wsync_differences_free(wsync_differences *d); /* NULL is fine */

/* --- engines, for callers with a path and no mount; nothing is kept between calls --- */

/* An inference server. Zeroes are defaults. */
typedef struct wsync_engine {
    const char *kind;    /* "sglang" or "vllm"; ignored by the functions that name one */
    const char *url;     /* http(s)://HOST:PORT, no credentials in it; ignored by the same functions */
    const char *version; /* that it shall report; NULL: "default" */
    const char *token;   /* bearer, or NULL */
    const char
        *pause_mode;     /* sglang: retract (default), abort, in_place; vllm: keep (default), wait, abort */
    unsigned timeout_ms; /* of the load; 0: 300 s */
    const char *admin_token; /* for requests that change it, where they want another; NULL: token */
    const char *ca_file;     /* certificate authorities for https; NULL: the system's */
    const char
        *cache; /* what is emptied of the old weights' keys and values: local (default), external, keep */
} wsync_engine;
typedef struct wsync_engine_result {
    int rc;               /* 0 or -errno */
    double pause_seconds; /* from the pause to the resume */
    char error[1024];     /* a sentence, and how it was left; empty on success */
} wsync_engine_result;
/* Pauses the engine, makes it load the folder at path (absolute, as the engine sees it), asks it what it
 * serves, empties its caches and resumes it. When the load fails, the engine loads again what it served
 * before, where that is known. It is never resumed without a load that it confirmed. options: all but kind
 * and url; may be NULL. -EREMOTEIO: the engine refused or failed; -EHOSTUNREACH, -ETIMEDOUT, -EACCES,
 * -EPROTO: no such server there; -EINVAL. Thread safe. */
int wsync_update_sglang_weights_from_disk(const char *url, const char *path, const wsync_engine *options);
int wsync_update_vllm_weights_from_disk(const char *url, const char *path, const wsync_engine *options);
/* The same for n engines at once, each independent of the others. Fills results[n]. Returns how many failed
 * (wsync_error: the first of them), or -EINVAL (n is 0), -ENOMEM, -EAGAIN: nothing was started. Thread safe. */
int wsync_sync_weights_to_engines(const wsync_engine *engines, size_t n, const char *path,
                                  wsync_engine_result *results);

/* A client of one engine, for callers that drive it by routes of its own. Of `engine` the url, token,
 * admin_token and ca_file are read, and copied; for the steps below kind, pause_mode and cache, too, which may be
 * NULL for requests. Any thread may use it, for any number of calls at once. -EINVAL: no address of a server, or a
 * token with a control character; what reading ca_file says; -ENOMEM. */
typedef struct wsync_engine_client wsync_engine_client;
int wsync_engine_client_open(const wsync_engine *engine, wsync_engine_client **out);
/* POSTs a JSON object to path ("/pause"), with admin_token; or GETs path where json is NULL, with token. Where one
 * token is missing the other is used. Returns 0 when any reply came: its status, and its text, NUL-terminated and
 * with the keys blanked, which the caller frees. -EHOSTUNREACH: not a byte was sent. The engine may have acted
 * after -ETIMEDOUT, -ECONNRESET and -ECANCELED. -EPROTO: no HTTP, or more than 64 MiB; -EACCES: a certificate
 * that is not trusted; -EINVAL. No error repeats a key. */
int wsync_engine_request(wsync_engine_client *client, const char *path, const char *json, unsigned timeout_ms,
                         int *status, char **text);
/* Steps of an update whose weights the caller moves itself, by the routes of the engine's kind. Each blocks for
 * timeout_ms (milliseconds, more than 0) at most, for all its requests together. An engine is believed by what it
 * reports, never by a status alone.
 *
 * pause: stops generation, as pause_mode says, and returns when the engine reports that it has. resume: again while
 * the engine reports that it is still paused. flush, after the weights have changed: empties what old weights have
 * computed, as `cache` says, again while requests are in the way; in SGLang nothing of its own cache after a pause
 * in_place, in vLLM the embeddings of images in any case. set_version: makes the engine report this version (at
 * most 63 bytes) of the weights that it holds; no request is ended.
 *
 * *acted (may be NULL), also after an error: 0, the engine goes on as it was, since nothing was sent or it refused
 * before it looked at its state; 1, it acted, or may have. After an error of pause with 1 it may be paused, or may
 * become so when a late request arrives.
 *
 * Errors: -EINVAL: kind, pause_mode or cache is none of wsync_engine's, or there is no time or version;
 * -EHOSTUNREACH: not a byte was sent; -EACCES: it wants another key, or its certificate is not trusted; -EPROTO:
 * it does not have the route, or answers what no such engine does; -EREMOTEIO: it refused, failed, or requests
 * were in the way until the end; -ETIMEDOUT, -ECONNRESET, -ECANCELED: no reply; -EPERM, -ENOMEM. Thread safe. */
int wsync_engine_pause(wsync_engine_client *client, unsigned timeout_ms, int *acted);
int wsync_engine_resume(wsync_engine_client *client, unsigned timeout_ms, int *acted);
int wsync_engine_flush(wsync_engine_client *client, unsigned timeout_ms);
int wsync_engine_set_version(wsync_engine_client *client, const char *version, unsigned timeout_ms,
                             int *acted);
/* What an engine reports of itself. The caller sets struct_size, and the rest to zero. */
typedef struct wsync_engine_state {
    size_t struct_size;
    char version[64]; /* that it serves; empty: it reports none */
    char path[4096];  /* the folder that it loaded last, or a vllm was started with; empty: it reports none */
    int paused;       /* 1, 0; -1: not known, as of any sglang */
    int sleeping;     /* 1, 0; -1: not known. A vllm that sleeps is paused, too */
} wsync_engine_state;
/* Asks the engine and changes nothing. Errors, timeout_ms and threads as above; also -EINVAL: struct_size. */
int wsync_engine_query(wsync_engine_client *client, unsigned timeout_ms, wsync_engine_state *out);
/* Ends the requests and steps that are under way, with -ECANCELED. Later ones are not affected. */
void wsync_engine_client_cancel(wsync_engine_client *client);
/* No request or step may be under way. NULL is fine. */
void wsync_engine_client_close(wsync_engine_client *client);

/* --- chunks, strategies, requests: weight sync in SkyRL's terms, for callers that move weights themselves
 * --- Source: skyrl.backends.skyrl_train.weight_sync of release 0.3.0 and skyrl_train.weight_sync of 0.3.1
 * (WeightChunk, WeightTransferStrategy, WeightSyncInitInfo, WeightUpdateRequest). Names are theirs. Objects
 * are immutable once made, may be read by any thread, and are freed by the function beside them. */

/* torch's name of an element type: "bfloat16", and str(dtype), "torch.bfloat16". NULL: torch has none (F4,
 * F6). */
const char *wsync_dtype_name(wsync_dtype dtype);
const char *wsync_dtype_str(wsync_dtype dtype);
/* The type with this name of torch's, in either form. -EINVAL: there is none. Of 0.1; to be removed after 0.2. */
WSYNC_DEPRECATED("compare with wsync_dtype_name and wsync_dtype_str")
int wsync_dtype_parse(const char *name, wsync_dtype *out);
/* Safetensors' name of it, "BF16"; NULL: there is no such type, so that a count from 0 on visits all. */
const char *wsync_dtype_safetensors(wsync_dtype dtype);
/* Bits of an element: 4 and 6 of packed types; 0: there is no such type. */
unsigned wsync_dtype_bits(wsync_dtype dtype);

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
/* What a receiver gets for an update: WeightUpdateRequest. In JSON parallel lists, as theirs: "names",
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

/* --- what changed between two versions, and writing it into memory that holds the older one --- */

/* For programs that keep a version's weights in memory, engines above all: the elements that differ between
 * two versions, and the writes of them into parameters. An element has the bytes of its type; of the types
 * under a byte (F4, F6) it is a byte of the file. */
typedef struct wsync_changes wsync_changes;
/* Lists what differs from base to target, folders of versions. A mount's target has
 * .wsync/changes-from-VERSION@RUN of the base, its delta (wsync-delta(5)): that is read, and the values are the
 * target's; then the base's files may be gone, unless the delta has blocks whole, but not its manifest, by which
 * the delta is known to be from this base. Else the files of both are compared. The caller frees *out with wsync_changes_free. -EPROTO: their tensors have other names, types or
 * shapes; -E2BIG: more than an eighth of the elements (and than 2^20) changed, so no list is made; -EBADMSG: the
 * delta is damaged, or between other versions than the folders' manifests; -EOPNOTSUPP: a mount with need=learn
 * would learn that all is read; -ESTALE: a file was changed meanwhile; -ENOENT and others: as opening and
 * reading say. */
int wsync_changes_open(wsync_changes **out, const char *target, const char *base);
void wsync_changes_free(wsync_changes *changes); /* NULL is fine */
/* Elements that changed, and all, of a tensor (0: there is none of this name), or with NULL of all tensors. */
uint64_t wsync_changes_count(const wsync_changes *changes, const char *tensor);
uint64_t wsync_changes_elements(const wsync_changes *changes, const char *tensor);
/* Were they read from a mount's delta (1), or found by comparing (0)? */
int wsync_changes_recorded(const wsync_changes *changes);

/* A box of elements of a tensor that lies in memory. Element (i0, i1, ...) of it, each i below its shape, is
 * element `from` + the sum of i times from_strides of the tensor, and element `to` + the sum of i times
 * to_strides of the memory. Strides may be negative; no two elements may have one place. */
typedef struct wsync_patch_region {
    const char *tensor;
    /* Where element 0 of the storage lies. Two regions of one storage have the same memory and
     * memory_elements. NULL: it is on a GPU, or else out of reach: the region is a destination of its own,
     * which is listed and not written. */
    void *memory;
    uint64_t memory_elements;
    unsigned element_bytes; /* 1, 2, 4 or 8: those of the tensor's type, to which memory is aligned */
    uint64_t to, from;
    unsigned n_dims; /* 0: one element */
    const uint64_t *shape;
    const int64_t *to_strides, *from_strides; /* in elements */
} wsync_patch_region;

/* A patch: regions, and what prepare made of them. One thread at a time uses it. The regions' memory has to
 * stay. */
typedef struct wsync_patch wsync_patch;
int wsync_patch_new(wsync_patch **out);
/* -EINVAL: what is wrong with it; a memory that overlaps another's without being the same is. */
int wsync_patch_add(wsync_patch *patch, const wsync_patch_region *region);
/* Makes the lists of places and values, and replaces earlier ones; the changes may be freed afterwards.
 * threads: of this and of check, put and undo; 0: as many as there are cores, 8 at most. -ENOENT: the version
 * has no such tensor; -EINVAL: a region lies outside of its tensor or memory, or its elements have other
 * bytes; -EOPNOTSUPP: strides that let elements share a place; -EEXIST: two tensors lie in one place and
 * differ, so that which counts is not known; -ENOMEM. */
int wsync_patch_prepare(wsync_patch *patch, const wsync_changes *changes, unsigned threads);
/* Elements that put writes; *bytes (may be NULL): of memory that the lists take. 0 before prepare. */
uint64_t wsync_patch_count(const wsync_patch *patch, uint64_t *bytes);
/* Of destination i, one for each distinct memory (and for each region without), in the order of add: the
 * numbers of its elements that change, ascending, with the values before and after. They stay until the next
 * wsync_patch_add or _prepare. -ERANGE: there is none. */
int wsync_patch_list(wsync_patch *patch, size_t i, const uint64_t **indexes, const void **before,
                     const void **after, uint64_t *n);
/* Do all places hold the base's values? -ESTALE: the sentence names a tensor and element that does not. Writes
 * nothing. Each of these three is -EINVAL before prepare. */
int wsync_patch_check(wsync_patch *patch);
/* Writes the target's values, all of them absolute: twice is as good as once. */
int wsync_patch_put(wsync_patch *patch);
/* Writes the base's, also after a put that was cut off. What check found right is then as it was. */
int wsync_patch_undo(wsync_patch *patch);
void wsync_patch_free(wsync_patch *patch); /* NULL is fine */

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
