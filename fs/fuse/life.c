#include "fs/fuse/life.h"
#include "fs/fuse/fs.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MODELS       512
#define VERSIONS     4096 /* a ring */
#define INIT_BYTES   512
#define ANSWER_BYTES 256
#define OP_INIT      26 /* linux/fuse.h */
#define NOTIFY_AGAIN 7  /* FUSE_NOTIFY_RESEND, which older headers lack */
#define SIDE_SHIFT   32
#define HANDLE_SHIFT 48 /* of pointers, which have 47 bits */
#define POINTER      ((1ULL << HANDLE_SHIFT) - 1)

struct in_header { /* linux/fuse.h */
    uint32_t bytes, op;
    uint64_t unique;
};
struct out_header {
    uint32_t bytes;
    int32_t error;
    uint64_t unique;
};

struct model {
    char name[WS_MAX_NAME + 1];
    uint64_t id;
    unsigned life; /* that has used it last */
};

struct version {
    uint64_t id, model_id, number;
    char run[WS_LINEAGE_CHARS + 1];
};

struct ws_life {
    _Atomic(unsigned) number;
    _Atomic(size_t) init_bytes;                           /* 0: the kernel has not begun */
    _Atomic(size_t) answer_bytes;                         /* 0: it has no answer yet */
    unsigned char init[INIT_BYTES], answer[ANSWER_BYTES]; /* the latter without its head */
    _Atomic(int) passed;                                  /* the highest number */
    uint64_t last_id;                                     /* with a lock of the store's */
    _Atomic uint64_t last_lookup;
    unsigned n_models;
    struct model models[MODELS];
    struct version versions[VERSIONS]; /* of an id at its remainder */
};

/* Of this process, which has one session. */
static atomic_bool begins_again;      /* the next read is the INIT */
static _Atomic(uint64_t) init_unique; /* of the INIT that is not answered yet; 0: none */
static sem_t init_answered;
static int former_passed;
static atomic_bool differs;       /* it would have answered the INIT otherwise */
static _Atomic(uint64_t) n_reads; /* begun */
static _Atomic(unsigned) n_readers;

struct ws_life *ws_life_open(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size != (off_t)sizeof(struct ws_life))
        return NULL;
    struct ws_life *l = mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return l == MAP_FAILED ? NULL : l;
}

struct ws_life *ws_life_new(int *fd)
{
    struct ws_life *l = NULL;
    *fd = memfd_create("wsync-life", MFD_CLOEXEC);
    if (*fd >= 0 && ftruncate(*fd, sizeof(*l)) == 0) /* zeros */
        l = ws_life_open(*fd);
    if (l)
        atomic_init(&l->number, ~0U);
    else if (*fd >= 0)
        close(*fd);
    return l;
}

void ws_life_free(struct ws_life *l)
{
    if (l)
        (void)munmap(l, sizeof(*l));
}

bool ws_life_next(struct ws_life *l)
{
    return atomic_fetch_add(&l->number, 1) + 1 < WS_LIVES;
}

unsigned ws_life_number(const struct ws_life *l)
{
    return l ? atomic_load(&l->number) : 0;
}

/* --- the session's reads and writes --- */

/* libfuse refuses what comes before it has answered the INIT (EIO), and another worker of it reads on meanwhile. The kernel would keep it
 * back from the first daemon, but not from those after. */
static void wait_for_answer(void)
{
    if (atomic_load(&init_unique) == 0)
        return;
    while (sem_wait(&init_answered) != 0)
        ;
    (void)sem_post(&init_answered); /* for the next */
}

/* The kernel answers a request with EIO where it has to bring a page of the buffer while this process is killed. Most requests, and all that
 * are sent again, fit in two: a command, which may be longer, fails with EIO anyway. */
static void bring_pages(volatile unsigned char *buf, size_t room)
{
    buf[0] = 0;
    if (room > WS_PAGE_BYTES)
        buf[WS_PAGE_BYTES] = 0;
}

static ssize_t read_request(int fd, void *buf, size_t room, void *arg)
{
    struct ws_life *l = ((const struct ws_fs *)arg)->life;
    const struct in_header *head = buf;
    if (atomic_exchange(&begins_again, false)) {
        const size_t n = atomic_load(&l->init_bytes);
        memcpy(buf, l->init, n);
        atomic_store(&init_unique, head->unique);
        return (ssize_t)n;
    }
    wait_for_answer();
    bring_pages(buf, room);
    atomic_fetch_add(&n_reads, 1);
    atomic_fetch_add(&n_readers, 1);
    const ssize_t n = read(fd, buf, room);
    const int why = errno;
    atomic_fetch_sub(&n_readers, 1);
    errno = why;
    if (n >= (ssize_t)sizeof(*head) && head->op == OP_INIT && n <= INIT_BYTES) {
        memcpy(l->init, buf, (size_t)n);
        atomic_store(&l->init_bytes, (size_t)n);
        atomic_store(&init_unique, head->unique);
    }
    return n;
}

static void ask_again(int fd)
{
    const struct out_header again = {.bytes = sizeof(again), .error = NOTIFY_AGAIN};
    if (write(fd, &again, sizeof(again)) != (ssize_t)sizeof(again))
        ws_log(WS_LOG_ERROR, "mount",
               "the kernel does not send again what the daemon before had read: %s; who waits for that waits "
               "until he is killed",
               strerror(errno));
}

/* The kernel has the answer where it does not know the request any more: the daemon before has died just then. */
static ssize_t answer_init(const struct ws_fs *fs, int fd, const struct iovec *v, int n)
{
    struct ws_life *l = fs->life;
    unsigned char answer[ANSWER_BYTES];
    size_t size = 0;
    ssize_t all = (ssize_t)v[0].iov_len;
    for (int i = 1; i < n && size + v[i].iov_len <= sizeof(answer); size += v[i++].iov_len) {
        memcpy(answer + size, v[i].iov_base, v[i].iov_len);
        all += (ssize_t)v[i].iov_len;
    }
    if (atomic_load(&l->answer_bytes) == 0) {
        const ssize_t wrote = writev(fd, v, n);
        if (wrote < 0 && errno != ENOENT)
            return wrote;
        memcpy(l->answer, answer, size);
        atomic_store(&l->answer_bytes, size);
        if (wrote > 0)
            return wrote;
    }
    if (size != atomic_load(&l->answer_bytes) || memcmp(answer, l->answer, size) != 0) {
        atomic_store(&differs, true);
        fuse_session_exit(fs->session);
        return all;
    }
    ask_again(fd);
    return all;
}

static ssize_t write_reply(int fd, struct iovec *v, int n, void *arg)
{
    const struct out_header *head = v[0].iov_base;
    if (head->unique == 0 || head->unique != atomic_load(&init_unique))
        return writev(fd, v, n);
    const ssize_t wrote = answer_init(arg, fd, v, n);
    atomic_store(&init_unique, 0);
    (void)sem_post(&init_answered);
    return wrote;
}

int ws_life_attach(struct ws_life *l, struct fuse_session *session)
{
    static const struct fuse_custom_io io = {.read = read_request, .writev = write_reply};
    if (!l)
        return 0;
    if (sem_init(&init_answered, 0, 0) != 0)
        return -errno;
    atomic_store(&begins_again, atomic_load(&l->init_bytes) > 0);
    former_passed = atomic_load(&l->passed);
    return fuse_session_custom_io(session, &io, fuse_session_fd(session)) == 0 ? 0 : -EIO;
}

bool ws_life_differs(void)
{
    return atomic_load(&differs);
}

bool ws_life_reads(uint64_t *seen)
{
    const uint64_t before = *seen;
    *seen = atomic_load(&n_reads);
    return atomic_load(&n_readers) > 0 || *seen != before || *seen == 0;
}

/* --- what is passed through --- */

void ws_life_passes(struct ws_life *l, int id)
{
    int highest = l ? atomic_load(&l->passed) : id;
    while (highest < id && !atomic_compare_exchange_weak(&l->passed, &highest, id))
        ;
}

int ws_life_former_passed(void)
{
    return former_passed;
}

/* --- numbers --- */

uint64_t *ws_life_last_id(struct ws_life *l)
{
    return l ? &l->last_id : NULL;
}

_Atomic uint64_t *ws_life_last_lookup(struct ws_life *l)
{
    return l ? &l->last_lookup : NULL;
}

uint64_t ws_life_first_side_id(const struct ws_life *l)
{
    return (uint64_t)ws_life_number(l) << SIDE_SHIFT;
}

/* A model that goes and comes again in one life is another one. */
uint64_t ws_life_model_id(struct ws_life *l, const char *name, uint64_t fresh)
{
    if (!l || strlen(name) > WS_MAX_NAME)
        return fresh;
    for (unsigned i = 0; i < l->n_models; i++) {
        struct model *m = &l->models[i];
        if (strcmp(m->name, name) != 0)
            continue;
        if (m->life == ws_life_number(l))
            m->id = fresh;
        m->life = ws_life_number(l);
        return m->id;
    }
    if (l->n_models == MODELS)
        return fresh;
    struct model *m = &l->models[l->n_models];
    snprintf(m->name, sizeof(m->name), "%s", name);
    m->id = fresh;
    m->life = ws_life_number(l);
    l->n_models++;
    return fresh;
}

void ws_life_add_version(struct ws_life *l, uint64_t id, uint64_t model_id,
                         const struct ws_version_id *version)
{
    struct version *v = &l->versions[id % VERSIONS];
    v->id = 0; /* a daemon that dies here leaves none */
    atomic_thread_fence(memory_order_release);
    v->model_id = model_id;
    v->number = version->version;
    snprintf(v->run, sizeof(v->run), "%s", version->lineage);
    atomic_thread_fence(memory_order_release);
    v->id = id;
}

bool ws_life_find_version(const struct ws_life *l, uint64_t id, uint64_t *model_id,
                          struct ws_version_id *version)
{
    const struct version *v = l ? &l->versions[id % VERSIONS] : NULL;
    if (!v || id == 0 || v->id != id)
        return false;
    *model_id = v->model_id;
    *version = ws_version_id_make(v->number, v->run);
    return true;
}

/* --- handles --- */

uint64_t ws_life_handle(const struct ws_life *l, const void *pointer)
{
    return (uint64_t)ws_life_number(l) << HANDLE_SHIFT | (uintptr_t)pointer;
}

void *ws_life_handled(const struct ws_life *l, uint64_t handle)
{
    return handle >> HANDLE_SHIFT == ws_life_number(l) ? (void *)(uintptr_t)(handle & POINTER) : NULL;
}
