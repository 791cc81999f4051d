#include "transports/s3/upload.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/s3/object.h"
#include "transports/s3/place.h"
#include "transports/s3/xml.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT_ONCE   4 /* parts that are sent; one more is being filled */
#define MAX_PARTS 10000U

struct etag {
    char text[128];
};
WS_VECTOR(etags, struct etag);

enum state { EMPTY, FULL, SENDING };

/* The writer fills those that are empty, a thread of their own empties those that are full. */
struct slot {
    struct ws_s3_upload *upload;
    pthread_t thread;
    bool has_thread;
    char *bytes; /* of part_bytes; NULL: not used yet */
    size_t n;
    unsigned number; /* from 1 */
    enum state state;
};

struct ws_s3_upload {
    struct ws_s3_bucket *bucket;
    char *key, *id; /* id: of the upload in parts, as a query has it; NULL: it has not begun */
    const atomic_bool *stop;
    uint64_t written;
    size_t part_bytes;
    unsigned n_parts;
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct slot slots[AT_ONCE + 1], *filling; /* filling: the writer's; NULL: none */
    /* guarded by lock, as the slots' states */
    struct etags etags; /* by number */
    bool is_ending;
    int rc; /* of the first part that failed */
    struct ws_error err;
};

int ws_s3_upload_new(struct ws_s3_upload **out, struct ws_s3_bucket *b, const char *key, uint64_t size,
                     const atomic_bool *stop, struct ws_error *err)
{
    struct ws_s3_upload *u = calloc(1, sizeof(*u));
    const uint64_t least = size / MAX_PARTS + 1;
    if (!u || !(u->key = strdup(key))) {
        free(u);
        return ws_error_set(err, ENOMEM, "no memory for an upload");
    }
    u->bucket = b;
    u->stop = stop;
    u->part_bytes = (size_t)(least + WS_S3_PART_BYTES - 1) / WS_S3_PART_BYTES * WS_S3_PART_BYTES;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->change, NULL);
    for (size_t i = 0; i < AT_ONCE + 1; i++)
        u->slots[i].upload = u;
    *out = u;
    return 0;
}

/* --- parts --- */

static int send_part(struct slot *s, struct etag *etag, struct ws_error *err)
{
    struct ws_s3_upload *u = s->upload;
    struct ws_s3_reply reply;
    char query[2200];
    snprintf(query, sizeof(query), "partNumber=%u&uploadId=%s", s->number, u->id);
    int rc = ws_s3_call(u->bucket,
                        &(struct ws_s3_request){.method = "PUT",
                                                .key = u->key,
                                                .query = query,
                                                .bytes = s->bytes,
                                                .n_bytes = s->n,
                                                .wants_etag = true,
                                                .is_no_markup = true,
                                                .cancel = u->stop},
                        &reply, err);
    memcpy(etag->text, reply.etag, sizeof(etag->text));
    ws_s3_reply_release(&reply);
    return rc;
}

static void *send_parts(void *arg)
{
    struct slot *s = arg;
    struct ws_s3_upload *u = s->upload;
    pthread_mutex_lock(&u->lock);
    while (s->state == FULL || !u->is_ending) {
        struct ws_error err = {0};
        struct etag etag;
        if (s->state != FULL) {
            pthread_cond_wait(&u->change, &u->lock);
            continue;
        }
        s->state = SENDING;
        const bool is_over = u->rc < 0;
        pthread_mutex_unlock(&u->lock);
        const int rc = is_over ? -ECANCELED : send_part(s, &etag, &err);
        pthread_mutex_lock(&u->lock);
        if (rc == 0)
            u->etags.ptr[s->number - 1] = etag;
        else if (u->rc == 0) {
            u->rc = rc;
            u->err = err;
        }
        s->state = EMPTY;
        s->n = 0;
        pthread_cond_broadcast(&u->change);
    }
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

static int begin_parts(struct ws_s3_upload *u, struct ws_error *err)
{
    struct ws_s3_reply reply;
    char id[2048 / 3];
    int rc = ws_s3_call(u->bucket,
                        &(struct ws_s3_request){.method = "POST",
                                                .key = u->key,
                                                .query = "uploads=",
                                                .root = "InitiateMultipartUploadResult",
                                                .cancel = u->stop},
                        &reply, err);
    if (rc < 0)
        return rc;
    if (!ws_s3_xml_get(reply.text, "UploadId", id, sizeof(id)))
        rc = ws_error_set(err, EPROTO, "the store began an upload of %s without an UploadId", u->key);
    else if (!(u->id = ws_s3_encode(id, false)))
        rc = ws_error_set(err, ENOMEM, "no memory for an upload");
    ws_s3_reply_release(&reply);
    return rc;
}

/* Hands what was filled to its thread. */
static int hand_over(struct ws_s3_upload *u, struct ws_error *err)
{
    struct slot *s = u->filling;
    int rc = u->id ? 0 : begin_parts(u, err);
    if (rc < 0)
        return rc;
    if (!s->has_thread && ws_thread_start(&s->thread, send_parts, s) < 0)
        return ws_error_set(err, EAGAIN, "cannot start a thread for an upload");
    s->has_thread = true;
    s->number = ++u->n_parts;
    pthread_mutex_lock(&u->lock);
    rc = etags_append(&u->etags, (struct etag){0});
    if (rc == 0)
        s->state = FULL;
    pthread_cond_broadcast(&u->change);
    pthread_mutex_unlock(&u->lock);
    u->filling = NULL;
    return rc < 0 ? ws_error_set(err, ENOMEM, "no memory for an upload") : 0;
}

/* An empty slot, as soon as there is one. */
static int get_slot(struct ws_s3_upload *u, struct ws_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&u->lock);
    while (!u->filling && (rc = u->rc) == 0) {
        for (size_t i = 0; i < AT_ONCE + 1 && !u->filling; i++)
            if (u->slots[i].state == EMPTY)
                u->filling = &u->slots[i];
        if (!u->filling)
            pthread_cond_wait(&u->change, &u->lock);
    }
    if (rc < 0 && err)
        *err = u->err;
    pthread_mutex_unlock(&u->lock);
    if (rc == 0 && !u->filling->bytes && !(u->filling->bytes = malloc(u->part_bytes)))
        rc = ws_error_set(err, ENOMEM, "no memory for a part of %zu bytes of an upload", u->part_bytes);
    return rc;
}

int ws_s3_upload_write(struct ws_s3_upload *u, const void *bytes, size_t n, struct ws_error *err)
{
    const char *from = bytes;
    int rc = 0;
    while (rc == 0 && n > 0) {
        if (u->filling && u->filling->n == u->part_bytes && (rc = hand_over(u, err)) < 0)
            break;
        if ((rc = get_slot(u, err)) < 0)
            break;
        struct slot *s = u->filling;
        const size_t piece = n < u->part_bytes - s->n ? n : u->part_bytes - s->n;
        memcpy(s->bytes + s->n, from, piece);
        s->n += piece;
        u->written += piece;
        from += piece;
        n -= piece;
    }
    return rc;
}

/* --- the end --- */

static void join(struct ws_s3_upload *u, int rc)
{
    pthread_mutex_lock(&u->lock);
    u->is_ending = true;
    if (rc < 0 && u->rc == 0) /* what waits is not sent any more */
        u->rc = rc;
    pthread_cond_broadcast(&u->change);
    pthread_mutex_unlock(&u->lock);
    for (size_t i = 0; i < AT_ONCE + 1; i++)
        if (u->slots[i].has_thread) {
            pthread_join(u->slots[i].thread, NULL);
            u->slots[i].has_thread = false;
        }
}

static void put_escaped(FILE *f, char c)
{
    if (c == '"' || c == '&' || c == '<')
        fputs(c == '"' ? "&quot;" : c == '&' ? "&amp;" : "&lt;", f);
    else
        fputc(c, f);
}

static char *parts_xml(const struct ws_s3_upload *u)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    fprintf(f, "<CompleteMultipartUpload>");
    for (unsigned i = 0; i < u->n_parts; i++) {
        fprintf(f, "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
        for (const char *p = u->etags.ptr[i].text; *p; p++)
            put_escaped(f, *p);
        fprintf(f, "</ETag></Part>");
    }
    fprintf(f, "</CompleteMultipartUpload>");
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}

/* A store that answers -ENOENT when it is asked again may have done it before, and its answer was lost: the size says
 * so. */
static int complete(struct ws_s3_upload *u, struct ws_error *err)
{
    struct ws_s3_reply reply;
    char query[2200], *xml = parts_xml(u);
    if (!xml)
        return ws_error_set(err, ENOMEM, "no memory for an upload");
    snprintf(query, sizeof(query), "uploadId=%s", u->id);
    int rc = ws_s3_call(u->bucket,
                        &(struct ws_s3_request){.method = "POST",
                                                .key = u->key,
                                                .query = query,
                                                .bytes = xml,
                                                .n_bytes = strlen(xml),
                                                .root = "CompleteMultipartUploadResult",
                                                .cancel = u->stop},
                        &reply, err);
    rc = rc == -ENOENT && reply.was_sent_before ? 0 : rc;
    ws_s3_reply_release(&reply);
    free(xml);
    return rc;
}

static int check_size(struct ws_s3_upload *u, struct ws_error *err)
{
    uint64_t size = 0;
    int rc = ws_s3_size(u->bucket, u->key, u->stop, &size, err);
    if (rc == 0 && size != u->written)
        rc =
            ws_error_set(err, EIO, "the store has %" PRIu64 " bytes of %s, of which %" PRIu64 " were written",
                         size, u->key, u->written);
    return rc;
}

static void abort_parts(struct ws_s3_upload *u)
{
    struct ws_s3_reply reply;
    struct ws_error err = {0};
    char query[2200];
    snprintf(query, sizeof(query), "uploadId=%s", u->id);
    if (ws_s3_call(
            u->bucket,
            &(struct ws_s3_request){.method = "DELETE", .key = u->key, .query = query, .is_once = true},
            &reply, &err) < 0 &&
        err.code != ENOENT)
        ws_log(WS_LOG_WARN, "s3", "parts of an upload are left in the store, which may charge for them: %s",
               err.text);
    ws_s3_reply_release(&reply);
}

int ws_s3_upload_flush(struct ws_s3_upload *u, int rc, struct ws_error *err)
{
    if (rc == 0 && u->id && u->filling)
        rc = hand_over(u, err);
    join(u, rc);
    if (rc == 0 && u->rc < 0) {
        rc = u->rc;
        if (err)
            *err = u->err;
    }
    return rc;
}

int ws_s3_upload_end(struct ws_s3_upload *u, int rc, struct ws_error *err)
{
    rc = ws_s3_upload_flush(u, rc, err);
    if (rc == 0 && u->id)
        rc = complete(u, err);
    else if (rc == 0) /* it was never more than one part */
        rc = ws_s3_put(u->bucket, u->key, u->filling ? u->filling->bytes : "", u->filling ? u->filling->n : 0,
                       u->stop, err);
    if (rc == 0)
        rc = check_size(u, err);
    if (rc < 0 && u->id)
        abort_parts(u);
    for (size_t i = 0; i < AT_ONCE + 1; i++)
        free(u->slots[i].bytes);
    etags_reset(&u->etags);
    pthread_cond_destroy(&u->change);
    pthread_mutex_destroy(&u->lock);
    free(u->key);
    free(u->id);
    free(u);
    return rc;
}
