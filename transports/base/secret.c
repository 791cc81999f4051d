#include "transports/base/secret.h"
#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SMALLEST_SHIFT 5U  /* of a block: 32 bytes */
#define LARGEST_SHIFT  16U /* that shares pages with others, which are never given back */
#define N_SIZES        (LARGEST_SHIFT - SMALLEST_SHIFT + 1)
#define CHUNK_BYTES    (256UL << 10)

/* Before each block's bytes. */
struct head {
    size_t bytes; /* of the block, the head included: a power of two, or pages of its own */
    struct head *next;
};
static_assert(sizeof(struct head) == 16, "what follows a head is aligned as malloc's blocks are");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Guarded by lock. */
static struct head *unused[N_SIZES]; /* blocks of 1 << (SMALLEST_SHIFT + i) bytes */
static unsigned char *chunk;
static size_t chunk_left;

static void *map(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    (void)madvise(p, n, MADV_DONTDUMP);
    return p;
}

/* Under lock. */
static struct head *carve(size_t n)
{
    if (chunk_left < n) {
        unsigned char *more = map(CHUNK_BYTES);
        if (!more)
            return NULL;
        chunk = more;
        chunk_left = CHUNK_BYTES;
    }
    struct head *h = (struct head *)chunk;
    chunk += n;
    chunk_left -= n;
    return h;
}

static struct head *take_small(size_t total)
{
    unsigned i = 0;
    while ((1UL << (SMALLEST_SHIFT + i)) < total)
        i++;
    pthread_mutex_lock(&lock);
    struct head *h = unused[i];
    if (h)
        unused[i] = h->next;
    else
        h = carve(1UL << (SMALLEST_SHIFT + i));
    pthread_mutex_unlock(&lock);
    if (h)
        h->bytes = 1UL << (SMALLEST_SHIFT + i);
    return h;
}

static struct head *take_large(size_t total)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (total + page - 1) / page * page;
    struct head *h = n < total ? NULL : map(n);
    if (h)
        h->bytes = n;
    return h;
}

void *ws_secret_alloc(size_t n)
{
    const size_t total = n + sizeof(struct head);
    if (total < n)
        return NULL;
    struct head *h = total <= 1UL << LARGEST_SHIFT ? take_small(total) : take_large(total);
    return h ? h + 1 : NULL;
}

void *ws_secret_zeroed(size_t n, size_t each)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, each, &bytes))
        return NULL;
    void *p = ws_secret_alloc(bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

void *ws_secret_resize(void *memory, size_t n)
{
    if (!memory)
        return ws_secret_alloc(n);
    const size_t has = ((struct head *)memory - 1)->bytes - sizeof(struct head);
    if (n <= has)
        return memory;
    void *p = ws_secret_alloc(n);
    if (!p)
        return NULL;
    memcpy(p, memory, has);
    ws_secret_free(memory);
    return p;
}

char *ws_secret_copy(const char *text)
{
    const size_t n = text ? strlen(text) + 1 : 0;
    char *copy = text ? ws_secret_alloc(n) : NULL;
    return copy ? memcpy(copy, text, n) : NULL;
}

void ws_secret_free(void *memory)
{
    if (!memory)
        return;
    struct head *h = (struct head *)memory - 1;
    unsigned i = 0;
    if (h->bytes > 1UL << LARGEST_SHIFT) {
        (void)munmap(h, h->bytes);
        return;
    }
    explicit_bzero(memory, h->bytes - sizeof(*h));
    while ((1UL << (SMALLEST_SHIFT + i)) < h->bytes)
        i++;
    pthread_mutex_lock(&lock);
    h->next = unused[i];
    unused[i] = h;
    pthread_mutex_unlock(&lock);
}

void ws_secret_hide(const void *bytes, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)bytes / page * page;
    (void)madvise((void *)begin, ((uintptr_t)bytes + n - begin + page - 1) / page * page, MADV_DONTDUMP);
}

void ws_secret_leave_no_core(void)
{
#ifndef __SANITIZE_ADDRESS__ /* whose search for leaks looks into the process from another one */
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
}
