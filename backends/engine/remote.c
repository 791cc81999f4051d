/* remote: any server that can be told to load a path over HTTP, described by templates instead of code:
 *
 *     load=POST:/reload:{"path":"{path}","version":"{version}"}
 *     pause=POST:/pause  flush=POST:/flush  resume=POST:/resume  serving=GET:/version:.version
 *
 * A template is METHOD:PATH[:BODY]. {path}, {version} (42@RUN) and {number} (42) are put in as JSON strings'
 * contents in a body, and percent-encoded in a path. A server that gets {number} alone reports that one. Any
 * 2xx is success, unless the reply to a flush has "success": false. `serving` is METHOD:PATH:.KEY[.KEY...],
 * where the keys lead to the version in the JSON reply. Without `serving` a 2xx of the load is believed, so
 * give it wherever the server can be asked.
 *
 *     patch=POST:/patch:{"stage":"{stage}","plan":"{plan}","path":"{path}","base":"{base}","version":"{version}"}
 *
 * is for a server that has wsync's package in its workers: it answers {"results": [...]}, one object a worker, and takes
 * {version} and {path} for what it holds after the stages put and undo. */
#include "backends/engine/patch.h"
#include "transports/base/limits.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const pause_modes[] = {NULL};

struct request {
    bool post;
    char *path, *body; /* owned; body NULL: none */
};

static void put_json(FILE *f, const char *text)
{
    json_t *s = json_string(text);
    char *quoted = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    if (quoted)
        fwrite(quoted + 1, 1, strlen(quoted) - 2, f);
    free(quoted);
    json_decref(s);
}

static void put_path(FILE *f, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (isalnum(*p) || strchr("-._~/", *p))
            fputc(*p, f);
        else
            fprintf(f, "%%%02X", *p);
    }
}

/* What is put into a template; NULL: nothing. */
struct values {
    const char *path, *version, *stage, *plan, *base;
};

static const char *text_of(const char *value)
{
    return value ? value : "";
}

/* n bytes of a template with its placeholders filled in; NULL: no memory. */
static char *fill(const char *text, size_t n, const struct values *v, void (*put)(FILE *f, const char *text))
{
    char number[64];
    const char *version = text_of(v->version);
    const struct {
        const char *place, *text;
    } places[] = {{"{path}", text_of(v->path)},   {"{version}", version},       {"{number}", number},
                  {"{stage}", text_of(v->stage)}, {"{plan}", text_of(v->plan)}, {"{base}", text_of(v->base)}};
    const size_t n_places = v->stage ? sizeof(places) / sizeof(places[0]) : 3;
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    if (!f)
        return NULL;
    snprintf(number, sizeof(number), "%.*s", (int)strcspn(version, "@"), version);
    for (const char *p = text; p < text + n;) {
        size_t i = 0, len_of_place = 1;
        while (i < n_places && strncmp(p, places[i].place, strlen(places[i].place)) != 0)
            i++;
        if (i < n_places) {
            put(f, places[i].text);
            len_of_place = strlen(places[i].place);
        } else {
            fputc(*p, f);
        }
        p += len_of_place;
    }
    if (fclose(f) != 0) {
        free(out);
        return NULL;
    }
    return out;
}

static void release(struct request *q)
{
    free(q->path);
    free(q->body);
}

/* -EINVAL: no template. */
static int parse(const char *template, const struct values *v, struct request *out, struct ws_error *err)
{
    *out = (struct request){.post = strncmp(template, "POST:/", 6) == 0};
    if (!out->post && strncmp(template, "GET:/", 5) != 0)
        return ws_error_set(
            err, EINVAL, "'%.100s' is no template: write METHOD:/PATH[:BODY], METHOD GET or POST", template);
    const char *at = strchr(template, ':') + 1, *body = strchr(at, ':');
    out->path = fill(at, body ? (size_t)(body - at) : strlen(at), v, put_path);
    out->body = body ? fill(body + 1, strlen(body + 1), v, put_json) : NULL;
    if (!out->path || (body && !out->body)) {
        release(out);
        return ws_error_set(err, ENOMEM, "no memory for a request");
    }
    return 0;
}

/* Runs a template; fresh: sent once at most; reply may be NULL. */
static int run_with(const struct ws_engine_target *t, const char *template, const struct values *v,
                    bool fresh, unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err)
{
    struct request q;
    struct ws_http_reply own;
    json_t *body = NULL;
    int rc = parse(template, v, &q, err);
    if (rc)
        return rc;
    if (q.post)
        body = q.body ? json_loads(q.body, JSON_DECODE_ANY, NULL) : json_object();
    if (q.post && !body)
        rc = ws_error_set(err, EINVAL, "the body of the template '%.100s' is no JSON", template);
    if (!rc)
        rc = ws_call_http(t, q.path, body, fresh, timeout_ms, &own, err);
    if (!rc && (own.status < 200 || own.status > 299)) {
        rc = own.status == 401 || own.status == 403
                 ? ws_error_set(err, EACCES, "%s%s answered %ld: it wants a key; use token-file=", t->url,
                                q.path, own.status)
                 : ws_error_set(err, EREMOTEIO, "%s%s answered %ld: %.300s", t->url, q.path, own.status,
                                own.text);
        ws_http_reply_release(&own);
    }
    if (!rc && reply)
        *reply = own;
    else if (!rc)
        ws_http_reply_release(&own);
    json_decref(body);
    release(&q);
    return rc;
}

static int run(const struct ws_engine_target *t, const char *template, const char *path, const char *version,
               bool fresh, unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err)
{
    return run_with(t, template, &(struct values){.path = path, .version = version}, fresh, timeout_ms, reply,
                    err);
}

/* ".version", ".data.weights.version": a string or a number. */
static int find(const struct ws_http_reply *reply, const char *keys, char *out, size_t cap)
{
    const json_t *at = reply->json;
    while (*keys == '.' && at) {
        char key[128];
        size_t n = strcspn(++keys, ".");
        if (n == 0 || n >= sizeof(key))
            return -EINVAL;
        snprintf(key, sizeof(key), "%.*s", (int)n, keys);
        at = json_object_get(at, key);
        keys += n;
    }
    int n = json_is_string(at)    ? snprintf(out, cap, "%s", json_string_value(at))
            : json_is_integer(at) ? snprintf(out, cap, "%lld", (long long)json_integer_value(at))
                                  : -1;
    return *keys || n < 0 || (size_t)n >= cap ? -EINVAL : 0;
}

static int serving(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    *out = (struct ws_engine_serving){0};
    if (!t->templates->serving)
        return 0;
    const char *keys = strstr(t->templates->serving, ":.");
    char template[WS_MAX_COMMAND + 1];
    if (!keys)
        return ws_error_set(err, EINVAL, "serving=%.100s: write METHOD:/PATH:.KEY", t->templates->serving);
    snprintf(template, sizeof(template), "%.*s", (int)(keys - t->templates->serving), t->templates->serving);
    int rc = run(t, template, "", "", false, ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    if (find(&reply, keys + 1, out->version, sizeof(out->version)))
        rc = ws_error_set(err, EPROTO, "%s has no version at %.100s in its reply: %.200s", t->url, keys + 1,
                          reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int probe(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                 struct ws_engine_serving *out, struct ws_error *err)
{
    const char *const all[] = {t->templates->pause, t->templates->load, t->templates->flush,
                               t->templates->resume, t->templates->patch};
    const struct values any = {"/p", "1", "state", "p", "/p"};
    struct request q;
    *facts = (struct ws_engine_facts){.known = true, .patches = t->templates->patch};
    if (!t->templates->load)
        return ws_error_set(err, EINVAL, "an engine of kind remote needs load=METHOD:/PATH[:BODY]");
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        int rc = all[i] ? parse(all[i], &any, &q, err) : 0;
        if (rc)
            return rc;
        if (all[i])
            release(&q);
    }
    if (!t->templates->pause != !t->templates->resume)
        return ws_error_set(err, EINVAL, "give pause= and resume= both, or neither");
    snprintf(facts->missing, sizeof(facts->missing), "%s%s", t->templates->pause ? "" : "pause ",
             t->templates->serving ? "" : "serving");
    return serving(t, out, err);
}

static int pause_engine(const struct ws_engine_target *t, struct ws_error *err)
{
    return t->templates->pause ? run(t, t->templates->pause, "", "", false, ws_call_pause_ms(t), NULL, err)
                               : 0;
}

static int resume(const struct ws_engine_target *t, struct ws_error *err)
{
    return t->templates->resume ? run(t, t->templates->resume, "", "", true, ws_call_short_ms(t), NULL, err)
                                : 0;
}

/* A 2xx with "success": false is a refusal: requests are in the way, as in vLLM. */
static int flush_once(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = run(t, t->templates->flush, "", "", true, ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    if (json_is_false(json_object_get(reply.json, "success")))
        rc = ws_error_set(err, EBUSY, "%s did not empty its caches: %.300s", t->url, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int flush(const struct ws_engine_target *t, struct ws_error *err)
{
    bool flushes = t->templates->flush && t->cache != WS_CACHE_KEEP;
    return flushes ? ws_call_while_busy(t, ws_call_short_ms(t), flush_once, err) : 0;
}

/* template: by which it was told. */
static int confirm(const struct ws_engine_target *t, const char *template, const char *path,
                   const char *version, struct ws_error *err)
{
    struct ws_engine_serving now;
    char number[sizeof(now.version)];
    bool whole = strstr(template, "{version}"); /* else the server got the number alone, or none */
    snprintf(number, sizeof(number), "%.*s", (int)strcspn(version, "@"), version);
    int rc = ws_call_after_request(serving(t, &now, err), err);
    if (!rc && now.version[0] && strcmp(now.version, whole ? version : number) != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s said that it loaded %s, but serves version '%s'", t->url, path,
                          now.version);
    return rc;
}

static int load(const struct ws_engine_target *t, const char *path, const char *version, struct ws_error *err)
{
    int rc = run(t, t->templates->load, path, version, true, t->timeout_ms, NULL, err);
    return rc ? rc : confirm(t, t->templates->load, path, version, err);
}

static int patch(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                 struct ws_engine_patch_reply *out, struct ws_error *err)
{
    const bool changes = ask->stage == WS_PATCH_PUT || ask->stage == WS_PATCH_UNDO;
    const struct values v = {.path = ask->target ? ask->target : ask->path,
                             .version = ask->version,
                             .stage = ws_engine_patch_stage_name(ask->stage),
                             .plan = ask->plan,
                             .base = ask->base};
    struct ws_http_reply reply;
    if (!t->templates->patch)
        return ws_error_set(err, EPROTO, "%s was added without patch=", t->url);
    int rc =
        run_with(t, t->templates->patch, &v, true, ws_engine_patch_within_ms(t, ask->stage), &reply, err);
    if (rc)
        return rc;
    rc = ws_engine_patch_read(t, ask, json_object_get(reply.json, "results"), 0, out, err);
    ws_http_reply_release(&reply);
    if (rc == 0 && changes && out->ok)
        rc = confirm(t, t->templates->patch, ask->path, ask->version, err);
    return rc;
}

const struct ws_engine_ops ws_engine_remote = {
    .kind = "remote",
    .pause_modes = pause_modes,
    .probe = probe,
    .pause = pause_engine,
    .load = load,
    .flush = flush,
    .resume = resume,
    .serving = serving,
    .patch = patch,
};
