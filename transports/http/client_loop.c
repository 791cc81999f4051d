/* One thread drives all transfers through libcurl's multi interface: only there a wait can be looked at (the
 * easy interface reports progress once a second, which is a long time for a person who pressed ^C), and only
 * there connections are shared. Callers hand over a handle and sleep. */
#include "transports/http/client_loop.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include "transports/http/transfer.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS         100 /* how often cancel is checked */
#define IDLE_MS         60000
#define MAX_CONNECTIONS 512L /* that are kept; more may be open */

/* On the stack of the thread that waits for it. */
struct transfer {
    struct transfer *next, **at; /* of the list that it is on */
    CURL *easy;
    const struct ws_http_request *request;
    CURLcode code;
    int rc;
    bool ended; /* guarded by the lock */
    pthread_cond_t change;
};

struct ws_http_client {
    CURLM *multi; /* the thread's own, but for waking it */
    pthread_t thread;
    struct transfer *running; /* the thread's own */
    int64_t looked_ms;
    pthread_mutex_t lock;
    struct transfer *coming; /* guarded by lock */
    bool stop;               /* guarded by lock */
};

static void link_to(struct transfer **list, struct transfer *t)
{
    t->next = *list;
    t->at = list;
    if (t->next)
        t->next->at = &t->next;
    *list = t;
}

/* The caller's memory is not touched after this. */
static void end(struct ws_http_client *h, struct transfer *t, int rc, CURLcode code)
{
    (void)curl_multi_remove_handle(h->multi, t->easy);
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    pthread_mutex_lock(&h->lock);
    t->rc = rc;
    t->code = code;
    t->ended = true;
    pthread_cond_signal(&t->change);
    pthread_mutex_unlock(&h->lock);
}

static bool is_cancelled(const struct ws_http_request *r)
{
    for (size_t i = 0; i < r->n_cancel; i++)
        if (r->cancel[i] && atomic_load(r->cancel[i]))
            return true;
    return false;
}

/* Starts the transfers that were handed over; false: the loop ends. */
static bool start_coming(struct ws_http_client *h)
{
    pthread_mutex_lock(&h->lock);
    struct transfer *t = h->coming;
    bool stop = h->stop;
    h->coming = NULL;
    pthread_mutex_unlock(&h->lock);
    while (t) {
        struct transfer *next = t->next;
        link_to(&h->running, t);
        if (is_cancelled(t->request))
            end(h, t, -ECANCELED, CURLE_OK);
        else if (curl_multi_add_handle(h->multi, t->easy))
            end(h, t, -EIO, CURLE_OK);
        t = next;
    }
    return !stop;
}

static void end_those_that_are_done(struct ws_http_client *h)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));) {
        struct transfer *t = NULL;
        CURLcode code = m->data.result;
        if (m->msg == CURLMSG_DONE && !curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t))
            end(h, t, 0, code);
    }
}

static int64_t now_ms(void)
{
    return (int64_t)ws_clock_ms();
}

/* rc 0: those that are cancelled; else all. */
static void end_early(struct ws_http_client *h, int rc)
{
    int64_t now = now_ms();
    if (!rc && now - h->looked_ms < LOOK_MS / 2)
        return;
    h->looked_ms = now;
    for (struct transfer *t = h->running, *next; t; t = next) {
        next = t->next;
        if (rc || is_cancelled(t->request))
            end(h, t, rc ? rc : -ECANCELED, CURLE_OK);
    }
}

static void *loop(void *arg)
{
    struct ws_http_client *h = arg;
    int n;
    while (start_coming(h)) {
        CURLMcode bad = curl_multi_perform(h->multi, &n);
        end_those_that_are_done(h);
        end_early(h, bad ? -EIO : 0);
        bad = curl_multi_poll(h->multi, NULL, 0, h->running ? LOOK_MS / 2 : IDLE_MS, NULL);
        if (bad) {
            end_early(h, -EIO);
            usleep(LOOK_MS * 1000);
        }
    }
    return NULL;
}

int ws_http_client_run(struct ws_http_client *h, CURL *easy, const struct ws_http_request *request,
                       CURLcode *code)
{
    struct transfer t = {.easy = easy, .request = request};
    if (curl_easy_setopt(easy, CURLOPT_PRIVATE, &t))
        return -EIO;
    pthread_cond_init(&t.change, NULL);
    pthread_mutex_lock(&h->lock);
    bool first = !h->coming; /* else it has been woken for another */
    link_to(&h->coming, &t);
    if (first)
        (void)curl_multi_wakeup(h->multi);
    while (!t.ended)
        pthread_cond_wait(&t.change, &h->lock);
    pthread_mutex_unlock(&h->lock);
    pthread_cond_destroy(&t.change);
    *code = t.code;
    return t.rc;
}

int ws_http_client_new(struct ws_http_client **out, struct ws_error *err)
{
    struct ws_http_client *h = calloc(1, sizeof(*h));
    if (!h)
        return ws_error_set(err, ENOMEM, "no memory for an HTTP client");
    ws_http_ensure_curl();
    pthread_mutex_init(&h->lock, NULL);
    h->multi = curl_multi_init();
    int rc = h->multi && !curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, MAX_CONNECTIONS) ? 0 : -ENOMEM;
    if (!rc)
        rc = ws_thread_start(&h->thread, loop, h);
    if (rc) {
        curl_multi_cleanup(h->multi);
        pthread_mutex_destroy(&h->lock);
        free(h);
        return ws_error_set(err, -rc, "an HTTP client could not be started");
    }
    *out = h;
    return 0;
}

void ws_http_client_free(struct ws_http_client *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    (void)curl_multi_wakeup(h->multi);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    curl_multi_cleanup(h->multi);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
