#include "backends/engine/pause.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <string.h>

static int check_word(const struct ws_engine_target *t, const char *path, const char *word,
                      struct ws_http_reply *reply, struct ws_error *err)
{
    int rc = 0;

    if (reply->status != 200 || strcmp(ws_call_text(reply, "status"), word) != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s refused %s: %ld %.300s", t->url, path, reply->status,
                          reply->text);
    ws_http_reply_release(reply);
    return rc;
}

int ws_pause_post(const struct ws_engine_target *t, const char *path, json_t *body, const char *word,
                  unsigned timeout_ms, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post(t, path, body, timeout_ms, &reply, err);

    return rc ? rc : check_word(t, path, word, &reply, err);
}

int ws_pause_resume_once(const struct ws_engine_target *t, const char *path, const char *word,
                         ws_pause_query *query, struct ws_error *err)
{
    struct ws_http_reply reply;
    bool paused;
    if (t->resumed_ns)
        *t->resumed_ns = 0; /* what it said before was not so */
    int rc = ws_call_post_once(t, path, json_object(), ws_call_short_ms(t), &reply, err);

    if (rc == 0)
        rc = check_word(t, path, word, &reply, err);
    if (rc && rc != -EREMOTEIO)
        return rc;
    if (rc == 0 && t->resumed_ns)
        *t->resumed_ns = ws_clock_ns();
    int asked = query(t, &paused, rc ? NULL : err);
    if (asked)
        return rc || asked == -ENOTSUP ? rc : asked;
    if (!paused)
        return 0;
    if (!rc)
        (void)ws_error_set(err, EBUSY, "%s said that it resumed, and is paused still", t->url);
    if (err)
        err->code = EBUSY;
    return -EBUSY;
}
