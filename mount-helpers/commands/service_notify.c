#include "mount-helpers/commands/service_notify.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/commands/pickle.h"
#include "transports/base/limits.h"
#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#define SAID_CHARS 300
#define POLL_MS    200

struct letter {
    const char *url;
    CURL *easy;
    char error[CURL_ERROR_SIZE];
    char *reply;
    size_t n_reply;
    bool loaded;
    char said[SAID_CHARS]; /* why not */
};

static size_t take(char *bytes, size_t size, size_t n, void *arg)
{
    struct letter *l = arg;
    size_t all = size * n;
    char *more = all > PICKLE_MAX_BYTES - l->n_reply ? NULL : realloc(l->reply, l->n_reply + all + 1);
    if (!more)
        return 0;
    memcpy(more + l->n_reply, bytes, all);
    l->reply = more;
    l->n_reply += all;
    return all;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* {"ok": true, "result": {"ok": ...}}, or {"ok": false, "error": ...} */
static void judge(struct letter *l, long status)
{
    json_t *reply = pickle_read(l->reply, l->n_reply);
    const json_t *result = json_object_get(reply, "result");
    bool no = json_is_false(json_object_get(reply, "ok")) || json_is_false(json_object_get(result, "ok"));
    const char *why = *text_of(reply, "error") ? text_of(reply, "error") : text_of(result, "error");
    l->loaded = status == 200 && !no;
    if (!l->loaded)
        snprintf(l->said, sizeof l->said, "it answered %ld%s%.200s", status, *why ? ": " : "", why);
    json_decref(reply);
}

static int prepare(struct letter *l, const struct curl_slist *headers, const char *body, size_t n_body,
                   unsigned timeout_s)
{
    size_t n = strlen(l->url);
    char url[WS_MAX_URL + 32];
    CURL *c = l->easy = curl_easy_init();
    if (!c)
        return -1;
    snprintf(url, sizeof url, "%.*s/notify_version", (int)(n && l->url[n - 1] == '/' ? n - 1 : n), l->url);
    bool bad = curl_easy_setopt(c, CURLOPT_URL, url);
    bad |= curl_easy_setopt(c, CURLOPT_PRIVATE, l);
    bad |= curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(c, CURLOPT_NOPROXY, "*"); /* it is a neighbour */
    bad |= curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    bad |= curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    bad |= curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE, (long)n_body);
    bad |= curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    bad |= curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)WS_CONNECT_TIMEOUT_MS);
    bad |= curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)timeout_s);
    bad |= curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
    bad |= curl_easy_setopt(c, CURLOPT_WRITEDATA, l);
    bad |= curl_easy_setopt(c, CURLOPT_ERRORBUFFER, l->error);
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
            snprintf(l->said, sizeof l->said, "%s",
                     l->error[0] ? l->error : curl_easy_strerror(m->data.result));
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
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/octet-stream");
    json_t *dict = json_pack("{s:s,s:I,s:s}", "model_id", news->model_id, "version",
                             (json_int_t)news->version, "sender_endpoint", news->sender);
    char *body = dict ? pickle_write(dict, &n_body) : NULL;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    CURLM *all = curl_multi_init();
    bool good = letters && headers && body && all;
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
        free(letters[i].reply);
    }
    curl_multi_cleanup(all);
    curl_slist_free_all(headers);
    json_decref(dict);
    free(body);
    free(letters);
    return loaded;
}
