/* A few threads ask the sources, each for one entry, that which waits longest first: a source that hangs holds up one
 * of them for as long as a reply may take, and is asked last after that. An entry is asked for again while the sources say that
 * it is being made and readers ask for it; what failed is forgotten after a moment, so that readers can try again.
 *
 * A mount that serves may have no keys, and cannot tell a signature from a lie. So an answer is good for some seconds,
 * and the next time another source is asked first: a reader that refuses it gets another one. */
#include "fs/proofs.h"
#include "transports/base/clock.h"
#include "transports/base/limits.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define N_THREADS    4
#define MOST         64
#define MOST_BYTES   (256UL << 20) /* of all answers */
#define AGAIN_NS     (50 * WS_MS_NS)
#define FORGOTTEN_NS (500 * WS_MS_NS)
#define FRESH_NS     (5 * WS_SECOND_NS) /* an answer */
#define UNWANTED_NS  (3 * WS_SECOND_NS) /* no reader has asked for it for so long */

struct proof {
    TAILQ_ENTRY(proof) entry;
    struct ws_model *model; /* counted */
    char *path;
    char *text; /* NULL: not here */
    size_t bytes;
    int rc; /* why it is not: -EAGAIN: it is on its way */
    struct ws_error err;
    uint64_t wanted_ns; /* when a reader asked last */
    uint64_t next_ns;   /* when the sources are asked next, or it is forgotten */
    bool is_busy;       /* a thread asks for it */
    unsigned turn;      /* the source that is asked first */
};

struct ws_proofs {
    pthread_t threads[N_THREADS];
    unsigned n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    TAILQ_HEAD(proofs, proof) all; /* newest first */
    size_t n;
    uint64_t bytes;
    bool stop;
};

/* --- with the lock --- */

static void free_proof(struct proof *one)
{
    ws_model_put(one->model);
    free(one->path);
    free(one->text);
    free(one);
}

static void drop(struct ws_proofs *p, struct proof *one)
{
    TAILQ_REMOVE(&p->all, one, entry);
    p->n--;
    p->bytes -= one->bytes;
    free_proof(one);
}

static void trim(struct ws_proofs *p)
{
    struct proof *one = TAILQ_LAST(&p->all, proofs);

    while (one && (p->n >= MOST || p->bytes > MOST_BYTES)) {
        struct proof *before = TAILQ_PREV(one, proofs, entry);
        if (!one->is_busy)
            drop(p, one);
        one = before;
    }
}

static struct proof *find(const struct ws_proofs *p, const char *path)
{
    struct proof *one;

    TAILQ_FOREACH(one, &p->all, entry)
    if (strcmp(one->path, path) == 0)
        return one;
    return NULL;
}

static struct proof *add(struct ws_proofs *p, struct ws_model *m, const char *path)
{
    struct proof *one = calloc(1, sizeof(*one));

    if (!one || !(one->path = strdup(path))) {
        free(one);
        return NULL;
    }
    trim(p); /* before it is there: it is not to go itself */
    one->model = ws_model_get(m);
    one->rc = -EAGAIN;
    TAILQ_INSERT_HEAD(&p->all, one, entry);
    p->n++;
    pthread_cond_signal(&p->changed);
    return one;
}

/* Another source is asked for it. */
static void renew(struct ws_proofs *p, struct proof *one)
{
    p->bytes -= one->bytes;
    free(one->text);
    one->text = NULL;
    one->bytes = 0;
    one->rc = -EAGAIN;
    one->next_ns = 0;
    one->turn++;
    pthread_cond_signal(&p->changed);
}

/* The entry to ask for now; else NULL, and when to look again. */
static struct proof *next(struct ws_proofs *p, uint64_t *until_ns)
{
    const uint64_t now = ws_clock_ns();
    struct proof *one, *before, *due = NULL;

    *until_ns = now + WS_SECOND_NS;
    for (one = TAILQ_LAST(&p->all, proofs); one; one = before) {
        before = TAILQ_PREV(one, proofs, entry);
        if (one->text || one->is_busy)
            continue;
        if ((one->rc != -EAGAIN && one->next_ns <= now) || now - one->wanted_ns > UNWANTED_NS) {
            drop(p, one);
            continue;
        }
        if (one->rc == -EAGAIN && one->next_ns <= now && !due)
            due = one;
        if (one->next_ns > now && one->next_ns < *until_ns)
            *until_ns = one->next_ns;
    }
    return due;
}

/* --- the threads --- */

/* Has it the form of a tree, or of a delta's proof? */
static bool has_form(const json_t *reply)
{
    const bool lists =
        json_is_array(json_object_get(reply, "leaves")) || json_is_array(json_object_get(reply, "files"));
    return lists && json_is_string(json_object_get(reply, "signature"));
}

static void ask(struct ws_proofs *p, struct proof *one)
{
    const unsigned turn = one->turn;
    json_t *reply = NULL;
    struct ws_error err = {0};

    one->is_busy = true;
    pthread_mutex_unlock(&p->lock);
    int rc = ws_model_query_signature(one->model, one->path, turn, &reply, &err);
    const bool is_other = rc == 0 && !has_form(reply);
    if (is_other)
        rc = ws_error_set(&err, EAGAIN, "a source answers with no signature; another one is asked");
    char *text = rc == 0 ? json_dumps(reply, JSON_COMPACT) : NULL;
    json_decref(reply);
    if (rc == 0 && !text)
        rc = ws_error_set(&err, ENOMEM, "no memory for a signature");
    pthread_mutex_lock(&p->lock);
    one->is_busy = false;
    one->text = text;
    one->bytes = text ? strlen(text) : 0;
    p->bytes += one->bytes;
    one->rc = rc;
    one->err = err;
    one->turn += is_other;
    one->next_ns = ws_clock_ns() + (rc == 0 ? FRESH_NS : rc == -EAGAIN ? AGAIN_NS : FORGOTTEN_NS);
    trim(p);
}

static void *proofs_main(void *arg)
{
    struct ws_proofs *p = arg;

    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        uint64_t until;
        struct proof *one = next(p, &until);
        if (one)
            ask(p, one);
        else
            (void)ws_cond_wait_until(&p->changed, &p->lock, until);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* --- from outside --- */

int ws_proofs_get(struct ws_proofs *p, struct ws_model *m, const char *path, json_t **reply,
                  struct ws_error *err)
{
    char *text = NULL;
    int rc = -ENOMEM;

    pthread_mutex_lock(&p->lock);
    struct proof *one = find(p, path);
    if (!one)
        one = add(p, m, path);
    if (one) {
        one->wanted_ns = ws_clock_ns();
        if (one->text && one->next_ns < one->wanted_ns)
            renew(p, one);
        rc = one->text ? 0 : one->rc;
        if (one->text && !(text = strdup(one->text)))
            rc = -ENOMEM;
        if (rc < 0 && one->err.code && err)
            *err = one->err;
        else if (rc == -EAGAIN)
            ws_error_set(err, EAGAIN, "the signature is on its way here");
    }
    pthread_mutex_unlock(&p->lock);
    *reply = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(text);
    if ((rc == 0 && !*reply) || rc == -ENOMEM)
        return ws_error_set(err, ENOMEM, "no memory for a signature");
    return rc;
}

int ws_proofs_new(struct ws_proofs **out, struct ws_error *err)
{
    struct ws_proofs *p = calloc(1, sizeof(*p));

    *out = NULL;
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory to serve other mounts");
    TAILQ_INIT(&p->all);
    pthread_mutex_init(&p->lock, NULL);
    ws_cond_init(&p->changed);
    int rc = 0;
    while (rc == 0 && p->n_threads < N_THREADS)
        if ((rc = ws_thread_start(&p->threads[p->n_threads], proofs_main, p)) == 0)
            p->n_threads++;
    if (rc < 0) {
        ws_proofs_free(p);
        return ws_error_set(err, -rc, "cannot start a thread to serve other mounts: %s", strerror(-rc));
    }
    *out = p;
    return 0;
}

void ws_proofs_stop(struct ws_proofs *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void ws_proofs_free(struct ws_proofs *p)
{
    if (!p)
        return;
    ws_proofs_stop(p);
    for (unsigned i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    for (struct proof *one = TAILQ_FIRST(&p->all), *after; one; one = after) {
        after = TAILQ_NEXT(one, entry);
        free_proof(one);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
