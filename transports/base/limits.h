/* Every limit of wsync in one place, so that a hostile header, a wrong command or a lying peer
 * meets a number and not the machine's end. Values are bytes or counts unless the name says so. */
#ifndef WS_TRANSPORTS_BASE_LIMITS_H
#define WS_TRANSPORTS_BASE_LIMITS_H

#define WS_BLOCK_BYTES (4UL << 20) /* unit of hashing, arrival and patching */
#define WS_PAGE_BYTES  4096UL      /* tensor data of a file starts at a multiple of this */

#define WS_MAX_DIMS            8
#define WS_MAX_NAME            255           /* model, file and tensor names as path components */
#define WS_LINEAGE_CHARS       32            /* a lineage's run id: up to 32 of [A-Za-z0-9._-] */
#define WS_MAX_TENSOR_NAME     1024          /* before percent-encoding */
#define WS_MAX_TENSORS         1000000       /* in one file, and in one version */
#define WS_MAX_HEADER_BYTES    (256UL << 20) /* of a file's safetensors header, and of all of a version */
#define WS_MAX_JSON_VALUE      (8UL << 20)   /* one value of a header, index or manifest, kept or skipped */
#define WS_MAX_FILES           4096          /* in one version */
#define WS_MAX_FILE_BYTES      (1UL << 44)
#define WS_MAX_SIDECAR_BYTES   (1UL << 30)
#define WS_MAX_MANIFEST_BYTES  (256UL << 20)
#define WS_MAX_VERSIONS        4096 /* known to a mount, a model */
#define WS_MAX_MODELS          1024
#define WS_MAX_SLOTS           8
#define WS_MAX_RANKS           65536
#define WS_MAX_STREAMS         64
#define WS_MAX_SOURCES         64
#define WS_MAX_DERIVED         16            /* quantised views that a mount makes */
#define WS_MAX_DERIVE_PATTERNS 64            /* of layers that such views leave as they are */
#define WS_MAX_NEEDS           16            /* models of which a mount reads only some tensors */
#define WS_MAX_NEED_PATTERNS   64            /* of tensors that a mount reads of a model (need=) */
#define WS_MAX_NODE_PARTS      256           /* nodes of a trainer, each with a part of the model */
#define WS_MAX_NODE_PART_BYTES (256UL << 20) /* the description of one */
#define WS_FANOUT_STRIPES      4 /* into which a version is dealt out among mounts that serve each other */
#define WS_MAX_RETIRED         64 /* versions of a model that a listing says to be deleted; the oldest give way */
#define WS_MAX_RELAYS          8 /* mounts that a version may come through, one after the other */
#define WS_MAX_ENGINES         1024
#define WS_MAX_COMMAND         4096 /* one write to a control file */
#define WS_MAX_URL             1024
#define WS_MOUNT_ID_CHARS      511           /* a mount's name at its agents: HOST:MOUNTPOINT */
#define WS_MAX_REPLY_BYTES     (64UL << 20)  /* a JSON reply of an engine or an agent, manifests apart */
#define WS_MAX_JSON_BYTES      (256UL << 20) /* of a reply in JSON, once it is parsed */
#define WS_MAX_MEMBERS         1024          /* of one broadcast, the sender included */
#define WS_MAX_BUCKET_BYTES    (256UL << 20) /* of a broadcast */
#define WS_MAX_FDS_PER_FRAME   64
#define WS_MAX_FDS_PER_CALL                                                                                  \
    1024 /* files of a version that a rank writes; of more the descriptors do not fit */
#define WS_MAX_REQUEST_BYTES (64UL << 20) /* a weight update request or a sync info, as JSON */
#define WS_MAX_GPU_UUID      63
#define WS_MAX_GPUS          65536 /* that one update has handles for */
#define WS_MAX_HANDLE_CHARS  8192  /* of a GPU's handle of memory, in base64 */
#define WS_MAX_CLIENTS       4096
#define WS_MAX_BODY_BYTES    (16UL << 10) /* of a request to an agent, where its route names no other limit */
#define WS_MAX_RELEASE_BYTES (128UL << 10) /* of a release of many models */
#define WS_MAX_PLACE_BYTES   (1UL << 20)   /* of a request for a place in a broadcast: it may list blocks */
#define WS_MAX_LARGE_BODY_BYTES                                                                              \
    (2UL << 20) /* of all bodies of a server at a time, what is over the usual limit */
#define WS_MAX_DRAIN_BYTES          (32UL << 20) /* of a body over the limit, read and dropped to answer its sender */
/* Connections of strangers (http/connections.h): of a server, with TLS, and from one address. */
#define WS_MAX_STRANGERS            512U
#define WS_MAX_STRANGERS_TLS        256U
#define WS_MAX_STRANGERS_OF_ADDRESS 64U
#define WS_MAX_PARKED               65536 /* FUSE requests that wait for bytes */

/* How slow a server's client may be. A body of n bytes may take WS_BODY_MS + n / WS_BODY_RATE. A reader has to take
 * a byte within WS_READER_MS, and WS_READER_RATE on the average of WS_READER_RATE_MS, of what is there for it. */
#define WS_HEAD_MS        5000UL
#define WS_BODY_MS        30000UL
#define WS_BODY_RATE      (64UL << 10) /* bytes per second */
#define WS_READER_MS      30000UL
#define WS_READER_RATE    (1UL << 10) /* bytes per second */
#define WS_READER_RATE_MS 60000UL

#define WS_BLOCK_TRIES        3 /* a block that is wrong this often fails the pull: EBADMSG */
#define WS_CONNECT_TIMEOUT_MS 5000
#define WS_REPLY_TIMEOUT_MS   30000
#define WS_MADE_MS            60000 /* a request waits so long for a version that is made on demand */
#define WS_ARRIVAL_MS         20000 /* a serving mount waits so long for arriving bytes, and then reports it */
#define WS_POLL_MS            10000 /* a mount asks its sources for news at least this often */
#define WS_LEASE_GRACE_MS     5000  /* and is called silent when it is later than this */
#ifndef WS_STALL_MS                 /* builds with a sanitizer are slower, and say so */
#define WS_STALL_MS 5000            /* a broadcast without progress for so long is given up */
#endif
#define WS_GATHER_MS        100    /* how long its sender waits for others after the first request */
#define WS_READ_DEADLINE_MS 120000 /* default for a read that waits for its block */
#define WS_DEFAULT_PORT     18861

#endif
