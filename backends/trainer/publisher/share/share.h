/* What a publisher shares on GPUs (wsync_config.share), inside:
 *   share      its life, its versions, the requests to the agent
 *   segments   cuda_ipc: the memory that parameters lie in
 *   packed     packed_cuda_ipc: copies of the parameters, in two sets of buffers that take turns
 *   on_demand  versions whose bytes are copied to the host only when a reader asks for them
 * Used by the publisher's thread, or by on_demand's thread with the publisher locked. */
#ifndef WS_TRAINER_PUBLISHER_SHARE_SHARE_H
#define WS_TRAINER_PUBLISHER_SHARE_SHARE_H
#include "backends/trainer/gpu/listing.h"
#include "backends/trainer/publisher/publisher_state.h"

/* A registered piece whose data is on a device, as it was put last. */
struct ws_shared_piece {
    const struct ws_registered_piece *registered;
    struct ws_source_layout layout;
    enum ws_dtype data_dtype;
    const void *data;
    void *stream;
    int device;
    uint64_t overflows;    /* of the conversion into the shared memory */
    const void *shared_at; /* its place in the shared memory */
};

/* Of one dtype on one device; pieces lie at multiples of WS_PACKED_ALIGNMENT. */
#define WS_PACKED_ALIGNMENT 256
struct ws_packed_buffer {
    int device;
    enum ws_dtype dtype;
    void *data;
    uint64_t room, used;
};

/* The memory that one version is shared by. */
struct ws_publisher_share_set {
    bool shared; /* from the offer to the agent until no reader has it any more */
    bool lost;   /* the agent that knew its readers has ended */
    bool stuck;  /* a wait for its readers timed out: the next ones only look whether they still have it */
    uint64_t version;
    unsigned connection; /* number of the connection that offered it */
    int lock_fd;         /* a file: each reader holds a lock on it, so that an agent's end loses nothing */
    struct ws_packed_buffer *buffers; /* packed */
    size_t n_buffers;
    struct ws_device_event **events;
    size_t n_events;
    /* on demand: what the version is made of when a reader asks for its bytes */
    wsync_param *params;  /* of the registration with that number */
    uint64_t *overflows;  /* of what is converted in the shared memory already */
    unsigned char **host; /* copies of what is in host memory */
    size_t n_params;
    unsigned registration;
};

struct ws_publisher_share {
    const struct ws_device_ops *ops;
    bool packed, on_demand;
    struct ws_on_demand *demand;      /* on_demand.c; NULL: versions are not made on demand */
    struct ws_shared_piece *recorded; /* by params */
    size_t n_recorded;
    struct ws_device_queue **queues; /* by device; NULL: not needed yet */
    char (*uuids)[WS_DEVICE_UUID_BYTES];
    unsigned n_devices;
    struct ws_publisher_share_set sets[2]; /* unpacked: the first one */
    unsigned turn;
    char refused[WS_ERROR_TEXT];   /* why the last version that was not shared could not be */
    char no_events[WS_ERROR_TEXT]; /* why the last version has none */
};

/* A version that is being offered to the agent. */
struct ws_publisher_share_offer {
    struct ws_shared_piece *pieces;
    size_t n_pieces;
    struct ws_gpu_listing listing;
    struct ws_device_extent *parts; /* of all segments that have them, in order */
    size_t n_parts;
};

/* The device's queue, made at need. */
WS_MUST_USE int ws_publisher_share_queue(struct ws_publisher_share *s, int device,
                                         struct ws_device_queue **out, struct ws_error *err);
/* Describes a piece for the listing; the caller may change its strides, dtype and place. */
WS_MUST_USE int ws_publisher_share_describe(const struct ws_shared_piece *a, struct ws_gpu_piece *out,
                                            struct ws_error *err);
/* Fill the offer's segments and pieces. */
WS_MUST_USE int ws_publisher_share_segments(struct ws_publisher_share *s, struct ws_publisher_share_offer *o,
                                            struct ws_error *err);
WS_MUST_USE int ws_publisher_share_packed(struct wsync_publisher *p, struct ws_publisher_share_set *set,
                                          struct ws_publisher_share_offer *o, struct ws_error *err);
/* on_demand.c. record: what the set's version is made of. start: the thread that waits for requests. */
WS_MUST_USE int ws_on_demand_record(struct wsync_publisher *p, struct ws_publisher_share_set *set,
                                    const struct ws_publisher_share_offer *o, struct ws_error *err);
WS_MUST_USE int ws_on_demand_new(struct ws_on_demand **out, struct ws_error *err);
WS_MUST_USE int ws_on_demand_start(struct wsync_publisher *p, struct ws_error *err);
void ws_on_demand_stop(struct wsync_publisher *p);
void ws_on_demand_forget(struct ws_publisher_share_set *set);
/* Makes the versions that readers have asked for, before their memory is taken back. */
void ws_on_demand_make_requested(struct wsync_publisher *p);
void ws_publisher_share_free_buffers(struct ws_publisher_share *s, struct ws_publisher_share_set *set);

#endif
