/* What a publisher shares on GPUs (config's share), inside: share.c (its life, versions, the agent),
 * segments.c (cuda_ipc: the memory that parameters lie in), packed.c (packed_cuda_ipc: copies
 * of them, in two sets of buffers in turn), on_demand.c (versions whose bytes are copied to the host
 * only when somebody wants them). By the publisher's thread, or on_demand.c's with the publisher locked.
 */
#ifndef WS_TRAINER_PUBLISHER_SHARE_SHARE_H
#define WS_TRAINER_PUBLISHER_SHARE_SHARE_H
#include "backends/trainer/gpu/listing.h"
#include "backends/trainer/publisher/publisher_state.h"

/* A registered piece whose data is on a device, as it was put last. */
struct ws_shared_piece {
    const struct ws_registered *registered;
    struct ws_layout layout;
    enum ws_dtype data_dtype;
    const void *data;
    void *stream;
    int device;
    uint64_t overflows;    /* of what was converted for others */
    const void *shared_at; /* where those find it who open the version */
};

/* Of one dtype on one device; pieces lie at multiples of WS_PACKED_ALIGNMENT. */
#define WS_PACKED_ALIGNMENT 256
struct ws_packed_buffer {
    int device;
    enum ws_dtype dtype;
    void *data;
    uint64_t room, used;
};

/* Memory that one version is shared by. */
struct ws_share_set {
    bool shared; /* from when the agent is told until nobody has it any more */
    bool lost;   /* an agent that knew who has it has ended */
    bool stuck; /* who has it was waited for in vain: from now on it is only looked whether he still has it */
    uint64_t version;
    unsigned connection; /* that it was told by */
    int hold; /* a file: each process that has the version holds a lock on it, whatever becomes of the agent
               */
    struct ws_packed_buffer *buffers; /* packed */
    size_t n_buffers;
    struct ws_event **marks;
    size_t n_marks;
    /* on demand: what the version is made of when somebody wants its bytes */
    wsync_param *params;  /* of the registration with that number */
    uint64_t *overflows;  /* of what is converted in the shared memory already */
    unsigned char **host; /* copies of what is in host memory */
    size_t n_params;
    unsigned registration;
};

struct ws_publisher_share {
    const struct ws_device_ops *ops;
    bool packed, on_demand;
    struct ws_demand *demand;      /* on_demand.c; NULL: nothing is made on demand */
    struct ws_shared_piece *noted; /* by params */
    size_t n_noted;
    struct ws_queue **queues; /* by device; NULL: not needed yet */
    char (*uuids)[WS_UUID_BYTES];
    unsigned n_devices;
    struct ws_share_set sets[2]; /* unpacked: the first one */
    unsigned turn;
    char refused[WS_ERROR_TEXT];  /* why the last version that was not shared was not */
    char no_marks[WS_ERROR_TEXT]; /* why there are none in the last version */
};

/* A version on its way to the agent. */
struct ws_share_offer {
    struct ws_shared_piece *pieces;
    size_t n_pieces;
    struct ws_gpu_listing listing;
    struct ws_extent *parts; /* of all segments that have them, in order */
    size_t n_parts;
};

/* The device's queue, made at need. */
WS_MUST_USE int ws_share_queue(struct ws_publisher_share *s, int device, struct ws_queue **out,
                               struct ws_error *err);
/* A piece as it is told; its strides, dtype and place are the caller's to change. */
WS_MUST_USE int ws_share_describe(const struct ws_shared_piece *a, struct ws_gpu_piece *out,
                                  struct ws_error *err);
/* Fill the offer's segments and pieces. */
WS_MUST_USE int ws_share_segments(struct ws_publisher_share *s, struct ws_share_offer *o,
                                  struct ws_error *err);
WS_MUST_USE int ws_share_packed(struct wsync_publisher *p, struct ws_share_set *set, struct ws_share_offer *o,
                                struct ws_error *err);
/* on_demand.c: notes what the set's version is made of; starts the thread that waits for who wants it.
 */
WS_MUST_USE int ws_demand_note(struct wsync_publisher *p, struct ws_share_set *set,
                               const struct ws_share_offer *o, struct ws_error *err);
WS_MUST_USE int ws_demand_new(struct ws_demand **out, struct ws_error *err);
WS_MUST_USE int ws_demand_start(struct wsync_publisher *p, struct ws_error *err);
void ws_demand_stop(struct wsync_publisher *p);
void ws_demand_forget(struct ws_share_set *set);
/* Makes what is wanted by now, before its memory is taken back. */
void ws_demand_make_wanted(struct wsync_publisher *p);
void ws_share_free_buffers(struct ws_publisher_share *s, struct ws_share_set *set);

#endif
