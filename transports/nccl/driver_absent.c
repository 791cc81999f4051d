/* A build without NCCL's headers: ws_nccl_available says so, and no caller reaches the rest. */
#include "transports/nccl/driver.h"
#include <errno.h>

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

int ws_nccl_id_new(int device, unsigned char out[WS_NCCL_ID_BYTES], struct ws_error *err)
{
    (void)device;
    (void)out;
    return none(err);
}

int ws_nccl_comm_new(struct ws_nccl_comm **out, const unsigned char id[WS_NCCL_ID_BYTES], int device,
                     unsigned rank, unsigned n_ranks, struct ws_error *err)
{
    (void)out;
    (void)id;
    (void)device;
    (void)rank;
    (void)n_ranks;
    return none(err);
}

int ws_nccl_comm_poll(struct ws_nccl_comm *c, struct ws_error *err)
{
    (void)c;
    return none(err);
}

int ws_nccl_comm_broadcast(struct ws_nccl_comm *c, struct ws_device_queue *q, void *data, size_t bytes,
                           struct ws_error *err)
{
    (void)c;
    (void)q;
    (void)data;
    (void)bytes;
    return none(err);
}

int ws_nccl_comm_finalize(struct ws_nccl_comm *c, struct ws_error *err)
{
    (void)c;
    return none(err);
}

void ws_nccl_comm_free(struct ws_nccl_comm *c)
{
    (void)c;
}
