#include "mount-helpers/commands/service_notify.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/commands/pickle.h"
#include "transports/http/transfer.h"
#include "transports/http/url.h"
#include <stdlib.h>
#include <string.h>

#define SAID_CHARS 300
#define POLL_MS    200

struct letter {
    const char *url; /* the service's */
    char *whole;     /* of its route */
    struct ws_http_transfer transfer;
    CURL *easy;
    char why[CURL_ERROR_SIZE];
    struct ws_http_text reply;
    bool loaded;
    char said[SAID_CHARS]; /* why not */
};

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* {"ok": true, "result": {"ok": ...}}, or {"ok": false, "error": ...}. A reply that cannot be read, as another server's, says of no load. */
static void judge(struct letter *l, long status)
{
    json_t *reply = pickle_read(l->reply.bytes.ptr, l->reply.bytes.len);
    const json_t *result = json_object_get(reply, "result");
    bool yes = json_is_true(json_object_get(reply, "ok")) && !json_is_false(json_object_get(result, "ok"));
    const char *why = *text_of(reply, "error") ? text_of(reply, "error") : text_of(result, "error");
    if (status == 200 && !yes && !*why)
        why = reply ? "not ok" : "with a reply that cannot be read";
    l->loaded = status == 200 && yes;
    if (!l->loaded)
        snprintf(l->said, sizeof l->said, "it answered %ld%s%.200s", status, *why ? ": " : "", why);
    json_decref(reply);
}

static int prepare(struct letter *l, struct curl_slist *headers, const char *body, size_t n_body,
                   unsigned timeout_s)
{
    l->easy = curl_easy_init();
    l->whole = ws_http_join(l->url, "/notify_version");
    l->reply.limit = PICKLE_MAX_BYTES;
    l->transfer = (struct ws_http_transfer){.url = l->whole,
                                            .headers = headers,
                                            .body = body,
                                            .n_body = n_body,
                                            .timeout_ms = timeout_s * 1000,
                                            .why = l->why};
    if (!l->easy || !l->whole || ws_http_set_up(l->easy, &l->transfer) < 0)
        return -1;
    bool bad = curl_easy_setopt(l->easy, CURLOPT_PRIVATE, l);
    bad |= curl_easy_setopt(l->easy, CURLOPT_WRITEFUNCTION, ws_http_receive_text);
    bad |= curl_easy_setopt(l->easy, CURLOPT_WRITEDATA, &l->reply);
    return bad ? -1 : 0;
}

static void conclude(CURLM *all)
{
    const CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(all, &left))) {
        struct letter *l;
        long status = 0;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&l);
        curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        if (m->data.result == CURLE_OK)
            judge(l, status);
        else
            snprintf(l->said, sizeof l->said, "%s", ws_http_why(&l->transfer, m->data.result));
    }
}

static void run_all(CURLM *all, const volatile sig_atomic_t *stop)
{
    int running = 1;
    while (running && !*stop) {
        if (curl_multi_perform(all, &running) != CURLM_OK)
            return;
        conclude(all);
        if (running && curl_multi_poll(all, NULL, 0, POLL_MS, NULL) != CURLM_OK)
            return;
    }
}

size_t raas_notify(const char *const *urls, size_t n, const struct raas_news *news, unsigned timeout_s,
                   const volatile sig_atomic_t *stop)
{
    size_t loaded = 0, n_body = 0;
    struct letter *letters = calloc(n, sizeof *letters);
    struct curl_slist *headers = NULL;
    json_t *dict = json_pack("{s:s,s:I,s:s}", "model_id", news->model_id, "version",
                             (json_int_t)news->version, "sender_endpoint", news->sender);
    char *body = dict ? pickle_write(dict, &n_body) : NULL;
    ws_http_ensure_curl();
    CURLM *all = curl_multi_init();
    bool good =
        letters && body && all && ws_http_add_header(&headers, "Content-Type: application/octet-stream") == 0;
    for (size_t i = 0; good && i < n; i++) {
        letters[i] = (struct letter){.url = urls[i], .said = "it was not waited for"};
        good = prepare(&letters[i], headers, body, n_body, timeout_s) == 0 &&
               curl_multi_add_handle(all, letters[i].easy) == CURLM_OK;
    }
    if (good)
        run_all(all, stop);
    else
        cli_fail("no memory to tell AstraFlow's services");
    for (size_t i = 0; letters && i < n; i++) {
        loaded += letters[i].loaded;
        if (good && !letters[i].loaded)
            fprintf(stderr, "  %s: %s\n", letters[i].url, letters[i].said);
        if (letters[i].easy) {
            curl_multi_remove_handle(all, letters[i].easy);
            curl_easy_cleanup(letters[i].easy);
        }
        free(letters[i].whole);
        free(letters[i].reply.bytes.ptr);
    }
    curl_multi_cleanup(all);
    curl_slist_free_all(headers);
    json_decref(dict);
    free(body);
    free(letters);
    return loaded;
}
