/* GPU listing: what one rank shares of a version in GPUs' memory, as a value and as JSON. The rank writes it,
 * its agent checks it and passes it on, and the process that opens the memory checks it again. Plain values,
 * thread safe.
 *
 *     {"segments": [{"device": "GPU-...", "bytes": 2097152, "handle": "base64"},
 *                   {"device": "GPU-...", "bytes": 4194304, "parts": [2097152, 2097152]}],
 *      "tensors": [{"name": "a", "dtype": "BF16", "shape": [4, 8], "kind": "box", "offset": [0, 0],
 *                   "size": [2, 8], "strides": [8, 1], "segment": 0, "at": 512, "data_dtype": "F32"},
 *                  {"name": "b", ..., "kind": "range", "start": 0, "count": 7, "segment": 1, "at": 0}],
 *      "marks": [{"device": "GPU-...", "handle": "base64"}]}
 *
 * A segment with parts is shared by descriptors, one for each part; the parts lie side by side. `at` is the
 * byte of the piece's first element in its segment. `data_dtype` is there where the data is not yet
 * converted. "marks" are events: a reader waits for them before it reads. */
#ifndef WS_TRAINER_GPU_LISTING_H
#define WS_TRAINER_GPU_LISTING_H
#include "backends/trainer/tensor/piece.h"
#include "transports/device/device.h"
#include "transports/simd/box.h"
#include <jansson.h>

struct ws_gpu_segment {
    char uuid[WS_DEVICE_UUID_BYTES];
    unsigned char handle[WS_DEVICE_HANDLE_BYTES]; /* where n_parts is 0 */
    uint64_t bytes;
    size_t n_parts;
    uint64_t *parts;
};

struct ws_gpu_piece {
    struct ws_tensor tensor; /* name is owned; begin, end: not said */
    struct ws_piece piece;
    int64_t strides[WS_MAX_DIMS]; /* of a box, in elements of the data */
    enum ws_dtype data_dtype;
    enum ws_conversion conversion; /* of the data, on its way to the file */
    size_t segment;
    uint64_t at;
};

struct ws_gpu_event {
    char uuid[WS_DEVICE_UUID_BYTES];
    unsigned char handle[WS_DEVICE_HANDLE_BYTES];
};

struct ws_gpu_listing {
    struct ws_gpu_segment *segments;
    struct ws_gpu_piece *pieces;
    struct ws_gpu_event *events;
    size_t n_segments, n_pieces, n_events;
};

/* NULL: no memory. */
json_t *ws_gpu_listing_to_json(const struct ws_gpu_listing *l);
/* -EINVAL says what is wrong; a piece never reaches beyond its segment. */
WS_MUST_USE int ws_gpu_listing_from_json(const json_t *json, struct ws_gpu_listing **out,
                                         struct ws_error *err);
void ws_gpu_listing_clear(struct ws_gpu_listing *l); /* what it points to */
void ws_gpu_listing_free(struct ws_gpu_listing *l);  /* NULL is fine */

/* The piece as loops over its data, dense on the other side. */
void ws_gpu_piece_runs(const struct ws_gpu_piece *p, struct ws_box_extents *out);
/* Its bytes, dense: in the file's dtype, and as data. */
uint64_t ws_gpu_piece_bytes(const struct ws_gpu_piece *p);
uint64_t ws_gpu_piece_data_bytes(const struct ws_gpu_piece *p);
/* The bytes that the piece covers, relative to its first element: from -*before (negative strides) up to
 * *after. -EINVAL: more than 63 bits. */
WS_MUST_USE int ws_gpu_piece_extent(const struct ws_gpu_piece *p, uint64_t *before, uint64_t *after);

#endif
