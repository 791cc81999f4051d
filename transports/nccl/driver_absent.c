/* A build without NCCL's headers: it says so, and nobody comes to the rest. */
#include "transports/nccl/driver.h"
#include <errno.h>
#include <stdio.h>

static int none(struct ws_error *why)
{
    return ws_error_set(why, ENOTSUP,
                        "this build has no NCCL: nccl.h was not there when it was made (NCCL_HOME)");
}

int ws_nccl_available(struct ws_error *why)
{
    return none(why);
}

int ws_nccl_release(void)
{
    return 0;
}

void ws_nccl_release_text(int release, char out[WS_NCCL_RELEASE_TEXT])
{
    snprintf(out, WS_NCCL_RELEASE_TEXT, "%d.%d.%d", release / 10000, release % 10000 / 100, release % 100);
}

int ws_nccl_id(int device, unsigned char out[WS_NCCL_ID_BYTES], struct ws_error *err)
{
    (void)device;
    (void)out;
    return none(err);
}

int ws_comm_new(struct ws_comm **out, const unsigned char id[WS_NCCL_ID_BYTES], int device, unsigned rank,
                unsigned n_ranks, struct ws_error *err)
{
    (void)out;
    (void)id;
    (void)device;
    (void)rank;
    (void)n_ranks;
    return none(err);
}

int ws_comm_poll(struct ws_comm *c, struct ws_error *err)
{
    (void)c;
    return none(err);
}

int ws_comm_broadcast(struct ws_comm *c, struct ws_queue *q, void *data, size_t bytes, struct ws_error *err)
{
    (void)c;
    (void)q;
    (void)data;
    (void)bytes;
    return none(err);
}

int ws_comm_finalize(struct ws_comm *c, struct ws_error *err)
{
    (void)c;
    return none(err);
}

void ws_comm_free(struct ws_comm *c)
{
    (void)c;
}
