/* A build without UCX's headers: ws_ucx_available says so, and no caller reaches the rest. */
#include "transports/ucx/engine.h"
#include <errno.h>

static int none(struct ws_error *why)
{
    return ws_error_set(why, ENOTSUP,
                        "this build has no UCX: ucp/api/ucp.h was not there when it was made (libucx-dev)");
}

int ws_ucx_available(struct ws_error *why)
{
    return none(why);
}

const char *ws_ucx_release(void)
{
    return "";
}

const char *ws_ucx_build(void)
{
    return "";
}

void ws_ucx_describe(FILE *out)
{
    (void)out;
}

int ws_ucx_memory_new(struct ws_ucx_memory **out, void *data, size_t bytes, struct ws_error *err)
{
    (void)out;
    (void)data;
    (void)bytes;
    return none(err);
}

void ws_ucx_memory_free(struct ws_ucx_memory *m)
{
    (void)m;
}

int ws_ucx_worker_new(struct ws_ucx_worker **out, ws_ucx_received *received, void *arg, struct ws_error *err)
{
    (void)out;
    (void)received;
    (void)arg;
    return none(err);
}

void ws_ucx_worker_end(struct ws_ucx_worker *w)
{
    (void)w;
}

bool ws_ucx_worker_is_gone(struct ws_ucx_worker *w)
{
    (void)w;
    return true;
}

void ws_ucx_worker_free(struct ws_ucx_worker *w)
{
    (void)w;
}

int ws_ucx_worker_address(struct ws_ucx_worker *w, unsigned char out[WS_UCX_ADDRESS_BYTES], size_t *n,
                          struct ws_error *err)
{
    (void)w;
    (void)out;
    (void)n;
    return none(err);
}

int ws_ucx_connect(struct ws_ucx_worker *w, const unsigned char *address, size_t n, struct ws_error *err)
{
    (void)w;
    (void)address;
    (void)n;
    return none(err);
}

int ws_ucx_failure(const struct ws_ucx_worker *w)
{
    (void)w;
    return 0;
}

bool ws_ucx_progress(struct ws_ucx_worker *w)
{
    (void)w;
    return false;
}

bool ws_ucx_arm(struct ws_ucx_worker *w)
{
    (void)w;
    return true;
}

int ws_ucx_descriptor(const struct ws_ucx_worker *w)
{
    (void)w;
    return -1;
}

int ws_ucx_send(struct ws_ucx_worker *w, const void *header, size_t n_header,
                const struct ws_ucx_memory *memory, const void *data, size_t bytes, ws_ucx_done *done,
                void *arg)
{
    (void)w;
    (void)header;
    (void)n_header;
    (void)memory;
    (void)data;
    (void)bytes;
    (void)done;
    (void)arg;
    return none(NULL);
}

int ws_ucx_receive(struct ws_ucx_worker *w, struct ws_ucx_data *data, void *dst, size_t bytes,
                   ws_ucx_done *done, void *arg)
{
    (void)w;
    (void)data;
    (void)dst;
    (void)bytes;
    (void)done;
    (void)arg;
    return none(NULL);
}
