#include "transports/ucx/engine.h"
#include "transports/base/clock.h"
#include "transports/base/library.h"
#include "transports/base/log.h"
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#define MESSAGE_ID 1
/* A worker whose peer is silent has so long to end. UCX aborts the process that destroys one with something under way
 * between processes of a host; such a worker is set aside for good, and never progresses: it touches nothing. */
#define DRAIN_MS   2000
#define AT_A_TIME  64            /* of what is left is done before others have their turn */
#define FETCHED    (256UL << 10) /* data from so many bytes on is fetched by the receiver, never sent along */

/* X(member, symbol) */
#define WS_UCX_SYMBOLS(X)                                                                                    \
    X(get_version, ucp_get_version)                                                                          \
    X(config_read, ucp_config_read)                                                                          \
    X(config_release, ucp_config_release)                                                                    \
    X(init, ucp_init_version)                                                                                \
    X(print_info, ucp_context_print_info)                                                                    \
    X(mem_map, ucp_mem_map)                                                                                  \
    X(mem_unmap, ucp_mem_unmap)                                                                              \
    X(worker_create, ucp_worker_create)                                                                      \
    X(worker_destroy, ucp_worker_destroy)                                                                    \
    X(worker_address, ucp_worker_get_address)                                                                \
    X(release_address, ucp_worker_release_address)                                                           \
    X(worker_progress, ucp_worker_progress)                                                                  \
    X(worker_arm, ucp_worker_arm)                                                                            \
    X(worker_efd, ucp_worker_get_efd)                                                                        \
    X(set_handler, ucp_worker_set_am_recv_handler)                                                           \
    X(ep_create, ucp_ep_create)                                                                              \
    X(ep_close, ucp_ep_close_nbx)                                                                            \
    X(check_status, ucp_request_check_status)                                                                \
    X(am_send, ucp_am_send_nbx)                                                                              \
    X(am_receive, ucp_am_recv_data_nbx)                                                                      \
    X(request_free, ucp_request_free)                                                                        \
    X(status_string, ucs_status_string)

struct ucx {
#define MEMBER(member, symbol) __typeof__(&symbol) member;
    WS_UCX_SYMBOLS(MEMBER)
#undef MEMBER
    ucp_context_h context;
    char release[WS_UCX_RELEASE_TEXT];
};

struct ws_ucx_memory {
    ucp_mem_h handle;
};

/* A send or a receive that is under way. */
struct op {
    struct op *next, *prev;
    struct ws_ucx_worker *worker;
    ws_ucx_done *done;
    void *arg;
    unsigned char header[WS_UCX_HEADER_BYTES];
};

struct ws_ucx_worker {
    ucp_worker_h worker;
    ws_ucx_received *received;
    void *arg;
    int efd;
    bool ends;
    int failure;   /* of the peer: -errno */
    ucp_ep_h peer; /* NULL: not connected */
    struct op *ops;
    ucs_status_ptr_t closing; /* of the connection to the peer; NULL: not under way */
    uint64_t until_ns;        /* it ends then at the latest */
    struct ws_ucx_worker *next_parked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* guarded by lock, but for reading once it is loaded */
static struct ucx ucx;
static bool tried, loaded;
static char why_not[WS_ERROR_TEXT];
static struct ws_ucx_worker *parked;

static const char *library(void)
{
    const char *other = getenv("WSYNC_LIBUCP");
    return other && *other ? other : "libucp.so.0";
}

static int errno_of(ucs_status_t s)
{
    switch (s) {
    case UCS_OK:
        return 0;
    case UCS_ERR_NO_MEMORY:
        return -ENOMEM;
    case UCS_ERR_UNREACHABLE:
        return -EHOSTUNREACH;
    case UCS_ERR_UNSUPPORTED:
        return -ENOTSUP;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return -EINVAL;
    case UCS_ERR_CANCELED:
        return -ECANCELED;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
        return -ETIMEDOUT;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
        return -ECONNRESET;
    default:
        return -EIO;
    }
}

static int failed(ucs_status_t s, const char *what, struct ws_error *err)
{
    return ws_error_set(err, -errno_of(s), "UCX cannot %s: %s", what, ucx.status_string(s));
}

/* A library in a daemon: it takes no signals, which the daemon's own handlers need, and prints nothing on stdout. Its tcp is for whoever asks
 * for it: 1.13.1 ends the process by assertions (uct_iface.h:884, tcp_ep.c:478) where a peer dies in the middle, one of some 80 killed mounts
 * ended the agent, and our own is quicker. */
static void set_defaults(void)
{
    static const char *const defaults[][2] = {{"UCX_HANDLE_ERRORS", "none"},
                                              {"UCX_LOG_LEVEL", "fatal"},
                                              {"UCX_WARN_UNUSED_ENV_VARS", "n"},
                                              {"UCX_TLS", "^tcp"}};
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
        (void)setenv(defaults[i][0], defaults[i][1], 0);
}

static int make_context(struct ws_error *why)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .mt_workers_shared = 1};
    ucp_config_t *config;
    ucs_status_t s = ucx.config_read(NULL, NULL, &config);
    if (s != UCS_OK)
        return failed(s, "read its variables (UCX_*)", why);
    s = ucx.init(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx.context);
    ucx.config_release(config);
    if (s == UCS_ERR_NO_DEVICE)
        return ws_error_set(why, ENOTSUP, "UCX finds no transport: look at UCX_TLS and UCX_NET_DEVICES");
    return s == UCS_OK ? 0 : failed(s, "start", why);
}

#ifdef __SANITIZE_ADDRESS__
/* Looking for leaks ends in a crash within what UCX leaves at the end. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return ucx.get_version != NULL;
}
#endif

/* Under lock. It stays open: its threads and handlers may run on. */
static int load(struct ws_error *why)
{
    static const struct ws_library_symbol symbols[] = {
#define ENTRY(member, symbol) {#symbol, offsetof(struct ucx, member)},
        WS_UCX_SYMBOLS(ENTRY)
#undef ENTRY
    };
    const char *missing;
    void *handle;
    unsigned major, minor, patch;
    struct ws_error err = {0};
    set_defaults();
    int rc = ws_library_open(library(), 0, symbols, sizeof(symbols) / sizeof(symbols[0]), &ucx, &handle,
                             &missing, &err);
    if (rc < 0)
        return missing ? ws_error_set(why, ENOTSUP, "UCX (%s) has no %s: it is too old", library(), missing)
                       : ws_error_set(why, ENOTSUP, "UCX cannot be loaded: %s (Debian: libucx0)", err.text);
    ucx.get_version(&major, &minor, &patch);
    snprintf(ucx.release, sizeof(ucx.release), "%u.%u.%u", major, minor, patch);
    if (major != UCP_API_MAJOR)
        return ws_error_set(why, ENOTSUP, "UCX (%s) is of release %s, and this build is for %d.%d", library(),
                            ucx.release, UCP_API_MAJOR, UCP_API_MINOR);
    return make_context(why);
}

int ws_ucx_available(struct ws_error *why)
{
    struct ws_error err = {0};
    pthread_mutex_lock(&lock);
    if (!tried) {
        loaded = load(&err) == 0;
        snprintf(why_not, sizeof(why_not), "%s", err.text);
    }
    tried = true;
    const bool yes = loaded;
    pthread_mutex_unlock(&lock);
    return yes ? 0 : ws_error_set(why, ENOTSUP, "%s", why_not);
}

const char *ws_ucx_release(void)
{
    return ws_ucx_available(NULL) == 0 ? ucx.release : "";
}

const char *ws_ucx_build(void)
{
#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)
    return TEXT_OF(UCP_API_MAJOR) "." TEXT_OF(UCP_API_MINOR);
}

void ws_ucx_describe(FILE *out)
{
    if (ws_ucx_available(NULL) == 0)
        ucx.print_info(ucx.context, out);
}

/* --- memory --- */

int ws_ucx_memory_new(struct ws_ucx_memory **out, void *data, size_t bytes, struct ws_error *err)
{
    struct ws_ucx_memory *m = calloc(1, sizeof(*m));
    const ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                       UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                       UCP_MEM_MAP_PARAM_FIELD_PROT,
                                         .address = data,
                                         .length = bytes,
                                         .prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ};
    if (!m)
        return ws_error_set(err, ENOMEM, "no memory for a registration");
    const ucs_status_t s = ucx.mem_map(ucx.context, &params, &m->handle);
    if (s != UCS_OK) {
        free(m);
        return failed(s, "register memory (ulimit -l)", err);
    }
    *out = m;
    return 0;
}

void ws_ucx_memory_free(struct ws_ucx_memory *m)
{
    if (m)
        (void)ucx.mem_unmap(ucx.context, m->handle);
    free(m);
}

/* --- workers --- */

static ucs_status_t on_message(void *arg, const void *header, size_t n_header, void *data, size_t bytes,
                               const ucp_am_recv_param_t *p)
{
    const struct ws_ucx_worker *w = arg;
    const bool fetched = (p->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    const struct ws_ucx_message m = {.header = header,
                                     .n_header = n_header,
                                     .eager = fetched || bytes == 0 ? NULL : data,
                                     .data = fetched ? data : NULL,
                                     .bytes = bytes};
    return !w->ends && w->received(w->arg, &m) && fetched ? UCS_INPROGRESS : UCS_OK;
}

int ws_ucx_worker_new(struct ws_ucx_worker **out, ws_ucx_received *received, void *arg, struct ws_error *err)
{
    struct ws_ucx_worker *w = calloc(1, sizeof(*w));
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    if (!w)
        return ws_error_set(err, ENOMEM, "no memory for a worker");
    w->received = received;
    w->arg = arg;
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = w};
    ucs_status_t s = ucx.worker_create(ucx.context, &params, &w->worker);
    if (s != UCS_OK) {
        free(w);
        return failed(s, "make a worker", err);
    }
    s = ucx.set_handler(w->worker, &handler);
    if (s == UCS_OK)
        s = ucx.worker_efd(w->worker, &w->efd);
    if (s != UCS_OK) {
        ws_ucx_worker_free(w);
        return failed(s, "make a worker that can be waited for", err);
    }
    *out = w;
    return 0;
}

/* What is under way ends at once where UCX handles the peer's failure (else it refuses). */
void ws_ucx_worker_end(struct ws_ucx_worker *w)
{
    const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = UCP_EP_CLOSE_FLAG_FORCE};
    w->ends = true;
    w->until_ns = ws_clock_ns() + DRAIN_MS * WS_MS_NS;
    ucs_status_ptr_t r = w->peer ? ucx.ep_close(w->peer, &params) : NULL;
    w->closing = UCS_PTR_IS_PTR(r) ? r : NULL;
}

static void set_aside(struct ws_ucx_worker *w)
{
    ws_log(WS_LOG_WARN, "ucx",
           "a worker is set aside, since its peer is silent and UCX cannot end what it has begun");
    pthread_mutex_lock(&lock);
    w->next_parked = parked;
    parked = w;
    pthread_mutex_unlock(&lock);
}

bool ws_ucx_worker_is_gone(struct ws_ucx_worker *w)
{
    for (int i = 0; i < AT_A_TIME && ucx.worker_progress(w->worker) > 0; i++)
        ;
    const bool in_time = ws_clock_ns() < w->until_ns;
    if (in_time && (w->ops || (w->closing && ucx.check_status(w->closing) == UCS_INPROGRESS)))
        return false;
    if (w->closing)
        ucx.request_free(w->closing);
    if (w->ops) {
        set_aside(w);
        return true;
    }
    ucx.worker_destroy(w->worker);
    free(w);
    return true;
}

void ws_ucx_worker_free(struct ws_ucx_worker *w)
{
    if (!w)
        return;
    ws_ucx_worker_end(w);
    while (!ws_ucx_worker_is_gone(w))
        (void)poll(NULL, 0, 1);
}

int ws_ucx_worker_address(struct ws_ucx_worker *w, unsigned char out[WS_UCX_ADDRESS_BYTES], size_t *n,
                          struct ws_error *err)
{
    ucp_address_t *address;
    const ucs_status_t s = ucx.worker_address(w->worker, &address, n);
    if (s != UCS_OK)
        return failed(s, "name a worker's address", err);
    const bool fits = *n <= WS_UCX_ADDRESS_BYTES;
    if (fits)
        memcpy(out, address, *n);
    ucx.release_address(w->worker, address);
    return fits ? 0
                : ws_error_set(
                      err, E2BIG,
                      "a worker's address has %zu bytes, and at most %d travel: name fewer devices by "
                      "UCX_NET_DEVICES",
                      *n, WS_UCX_ADDRESS_BYTES);
}

/* What is under way ends with its callbacks. */
static void on_failure(void *arg, ucp_ep_h ep, ucs_status_t s)
{
    struct ws_ucx_worker *w = arg;
    (void)ep;
    w->failure = errno_of(s);
}

int ws_ucx_failure(const struct ws_ucx_worker *w)
{
    return w->failure;
}

int ws_ucx_connect(struct ws_ucx_worker *w, const unsigned char *address, size_t n, struct ws_error *err)
{
    /* UCX trusts the length fields within: bytes behind the address end each of its lists. */
    unsigned char copy[2 * WS_UCX_ADDRESS_BYTES] = {0};
    ucp_ep_h ep;
    if (n == 0 || n > WS_UCX_ADDRESS_BYTES)
        return ws_error_set(err, EPROTO, "a worker's address of %zu bytes is none", n);
    memcpy(copy, address, n);
    /* Where UCX can notice that the peer has failed it does. It cannot between processes of a host: where nothing else
     * reaches the peer, the caller notices that it is silent. */
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)copy,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = on_failure, .arg = w}};
    ucs_status_t s = ucx.ep_create(w->worker, &params, &ep);
    if (s == UCS_ERR_UNREACHABLE) {
        params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
        s = ucx.ep_create(w->worker, &params, &ep);
    }
    if (s != UCS_OK)
        return failed(
            s, "reach the other side (its UCX_TLS and this one's have nothing in common that gets there)",
            err);
    w->peer = ep;
    return 0;
}

bool ws_ucx_progress(struct ws_ucx_worker *w)
{
    return ucx.worker_progress(w->worker) > 0;
}

bool ws_ucx_arm(struct ws_ucx_worker *w)
{
    return ucx.worker_arm(w->worker) == UCS_OK;
}

int ws_ucx_descriptor(const struct ws_ucx_worker *w)
{
    return w->efd;
}

/* --- what is under way --- */

static struct op *new_op(struct ws_ucx_worker *w, ws_ucx_done *done, void *arg)
{
    struct op *o = calloc(1, sizeof(*o));
    if (!o)
        return NULL;
    *o = (struct op){.worker = w, .next = w->ops, .done = done, .arg = arg};
    if (w->ops)
        w->ops->prev = o;
    w->ops = o;
    return o;
}

static void end_op(struct op *o, ucs_status_t s)
{
    struct ws_ucx_worker *w = o->worker;
    *(o->prev ? &o->prev->next : &w->ops) = o->next;
    if (o->next)
        o->next->prev = o->prev;
    if (!w->ends)
        o->done(o->arg, errno_of(s));
    free(o);
}

static void on_sent(void *request, ucs_status_t s, void *op)
{
    ucx.request_free(request);
    end_op(op, s);
}

static void on_fetched(void *request, ucs_status_t s, size_t n, void *op)
{
    (void)n;
    on_sent(request, s, op);
}

/* What a call that begins something returned. */
static int begun(struct op *o, ucs_status_ptr_t r)
{
    if (UCS_PTR_IS_PTR(r))
        return 0; /* its callback ends it */
    end_op(o, UCS_PTR_STATUS(r));
    return 0;
}

int ws_ucx_send(struct ws_ucx_worker *w, const void *header, size_t n_header,
                const struct ws_ucx_memory *memory, const void *data, size_t bytes, ws_ucx_done *done,
                void *arg)
{
    struct op *o = n_header <= WS_UCX_HEADER_BYTES ? new_op(w, done, arg) : NULL;
    if (!o)
        return -ENOMEM;
    memcpy(o->header, header, n_header);
    const ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                        (memory && bytes ? UCP_OP_ATTR_FIELD_MEMH : 0),
        .flags = bytes >= FETCHED ? UCP_AM_SEND_FLAG_RNDV : 0,
        .cb.send = on_sent,
        .user_data = o,
        .memh = memory && bytes ? memory->handle : NULL};
    return begun(o, ucx.am_send(w->peer, MESSAGE_ID, o->header, n_header, data, bytes, &params));
}

int ws_ucx_receive(struct ws_ucx_worker *w, struct ws_ucx_data *data, void *dst, size_t bytes,
                   ws_ucx_done *done, void *arg)
{
    struct op *o = new_op(w, done, arg);
    const ucp_request_param_t params = {.op_attr_mask =
                                            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                        .cb.recv_am = on_fetched,
                                        .user_data = o};
    return o ? begun(o, ucx.am_receive(w->worker, data, dst, bytes, &params)) : -ENOMEM;
}
