/* The mounts of an agent, a line each, sorted by who holds the others back. What they say comes from other machines. */
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/doctor/probe.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include "transports/protocol/api.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLEET_S          20
#define CLOCK_OFF_MS     2000 /* a report takes less, and signatures' times are compared in seconds */
#define SLOW_SHARE       3    /* as trees of mounts reckon: a third of the median is slow */
#define DESCRIPTION_N    700
#define DAY_S            86400.0
#define CERTIFICATE_DAYS 14 /* as the alert rules have it */

/* Smaller: holds the others back more. */
enum rank { SILENT, FAILED, UNDER_WAY, GOOD };

struct row {
    const char *model;
    const json_t *mount;
    enum rank rank;
    json_int_t link; /* 0: not measured */
};
struct rows {
    struct row *ptr;
    size_t n;
};

static const json_t *machine(const json_t *mount, const char *key)
{
    return json_object_get(json_object_get(mount, "machine"), key);
}

static const char *text_or(const json_t *value, const char *otherwise)
{
    return json_is_string(value) ? json_string_value(value) : otherwise;
}

static const char *source_error(const json_t *mount)
{
    return json_string_value(machine(mount, "source_error"));
}

static enum rank rank_of(const json_t *mount)
{
    if (json_is_true(json_object_get(mount, "silent")))
        return SILENT;
    if (*text_or(json_object_get(mount, "error"), "") || source_error(mount))
        return FAILED;
    return json_is_true(json_object_get(mount, "under_way")) ? UNDER_WAY : GOOD;
}

static int compare(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->link != y->link)
        return !x->link ? 1 : !y->link ? -1 : x->link < y->link ? -1 : 1;
    return strcmp(text_or(json_object_get(x->mount, "mount"), ""),
                  text_or(json_object_get(y->mount, "mount"), ""));
}

/* Days until the certificate of a machine ends, below 0: it has. False: it has none, or does not say. */
static bool certificate_days(const json_t *machine_said, double *days)
{
    const json_int_t end = json_integer_value(json_object_get(machine_said, "certificate_end"));
    *days = ((double)end - (double)ws_clock_day_ns() / 1e9) / DAY_S;
    return end > 0;
}

/* Appends to a description, as far as there is room. */
__attribute__((format(printf, 2, 3))) static void put(char out[DESCRIPTION_N], const char *format, ...)
{
    const size_t n = strlen(out);
    va_list ap;
    va_start(ap, format);
    vsnprintf(out + n, DESCRIPTION_N - n, format, ap);
    va_end(ap);
}

static void put_certificate(char out[DESCRIPTION_N], const char *whose, const json_t *machine_said)
{
    double days;
    if (certificate_days(machine_said, &days))
        put(out, days < 0 ? ", %s certificate ended %.0f days ago" : ", %s certificate ends in %.0f days",
            whose, days < 0 ? -days : days);
}

static bool ends_soon(const json_t *machine_said)
{
    double days;
    return certificate_days(machine_said, &days) && days < CERTIFICATE_DAYS;
}

static void describe(const json_t *mount, char out[DESCRIPTION_N])
{
    const json_t *m = json_object_get(mount, "machine");
    const json_int_t link = json_integer_value(machine(mount, "link"));
    const json_int_t mtu = json_integer_value(machine(mount, "mtu"));
    const json_int_t rtt_us = json_integer_value(machine(mount, "rtt_us"));
    out[0] = 0;
    if (!json_is_object(m)) {
        put(out, "its machine: not said, as by mounts of 0.1");
        return;
    }
    put(out, "wsync %.40s, kernel %.60s, source %.200s by %s", text_or(machine(mount, "wsync"), "not said"),
        text_or(machine(mount, "kernel"), "not said"), text_or(machine(mount, "source"), "not said"),
        link > 0 ? cli_rate((uint64_t)link, 1) : "a speed that was not measured");
    if (rtt_us > 0)
        put(out, ", round trip %.2f ms", (double)rtt_us / 1000);
    if (mtu > 0)
        put(out, ", MTU %" PRId64, (int64_t)mtu);
    put_certificate(out, "client", m);
    put(out, ", memory %s", cli_size((uint64_t)json_integer_value(machine(mount, "memory"))));
    put(out, ", cache %s of", cli_size((uint64_t)json_integer_value(machine(mount, "used"))));
    put(out, " %s, clock %+.1f s", cli_size((uint64_t)json_integer_value(machine(mount, "cache"))),
        (double)json_integer_value(machine(mount, "clock_ms")) / 1000);
    put(out, " (said %" PRId64 " s ago)", (int64_t)json_integer_value(json_object_get(mount, "machine_age")));
}

static void say(struct doctor *d, const struct row *r, json_int_t median)
{
    char name[WS_MAX_NAME + WS_MOUNT_ID_CHARS + 2], rest[DESCRIPTION_N];
    const json_int_t clock_ms = json_integer_value(machine(r->mount, "clock_ms"));
    const char *error = text_or(json_object_get(r->mount, "error"), "");
    snprintf(name, sizeof(name), "%.100s %.200s", r->model, text_or(json_object_get(r->mount, "mount"), "?"));
    ws_text_clean(name); /* an agent's word, and cut */
    describe(r->mount, rest);
    if (r->rank == SILENT)
        doctor_say(d, DOCTOR_BROKEN, name,
                   "silent: the agent does not hear of it: look at its host and daemon there; %s", rest);
    else if (*error)
        doctor_say(d, DOCTOR_BROKEN, name, "failed: %.300s; %s", error, rest);
    else if (source_error(r->mount))
        doctor_say(d, DOCTOR_BROKEN, name, "its source is down: %.300s; %s", source_error(r->mount), rest);
    else if (ends_soon(json_object_get(r->mount, "machine")))
        doctor_say(d, DOCTOR_NOTE, name, "its client certificate is to be renewed; %s", rest);
    else if (r->rank == UNDER_WAY)
        doctor_say(d, DOCTOR_NOTE, name, "on its way to what was released; %s", rest);
    else if (clock_ms > CLOCK_OFF_MS || clock_ms < -CLOCK_OFF_MS)
        doctor_say(d, DOCTOR_NOTE, name, "its clock is off; %s", rest);
    else if (r->link > 0 && r->link < median / SLOW_SHARE)
        doctor_say(d, DOCTOR_NOTE, name, "slow: less than a third of the others; %s", rest);
    else
        doctor_say(d, DOCTOR_OK, name, "%s", rest);
}

/* Of the good ones, which are at the end and sorted, with what was not measured last. */
static json_int_t median_link(const struct rows *rows)
{
    size_t first = 0, end = rows->n;
    while (first < end && rows->ptr[first].rank != GOOD)
        first++;
    while (end > first && !rows->ptr[end - 1].link)
        end--;
    return end > first ? rows->ptr[first + (end - first) / 2].link : 0;
}

static void collect(const json_t *models, struct rows *rows)
{
    const json_t *model, *mount;
    size_t i, k;
    json_array_foreach(models, i, model)
    {
        json_array_foreach(json_object_get(model, "mounts"), k, mount)
        {
            struct row *grown = realloc(rows->ptr, (rows->n + 1) * sizeof(*grown));
            if (!grown)
                return;
            rows->ptr = grown;
            rows->ptr[rows->n++] = (struct row){text_or(json_object_get(model, "name"), "?"), mount,
                                                rank_of(mount), json_integer_value(machine(mount, "link"))};
        }
    }
}

/* said NULL: it does not say what machine it is on, as agents of 0.1. */
static void say_agent(struct doctor *d, const char *url, size_t n_models, const json_t *said)
{
    char rest[DESCRIPTION_N] = "";
    double days;
    const bool has_ended = certificate_days(said, &days) && days < 0;
    put(rest, "%.200s answers and has %zu models", url, n_models);
    if (said) {
        put(rest, ", wsync %.40s, kernel %.60s", text_or(json_object_get(said, "wsync"), "not said"),
            text_or(json_object_get(said, "kernel"), "not said"));
        put(rest, ", memory %s", cli_size((uint64_t)json_integer_value(json_object_get(said, "memory"))));
        put(rest, ", %s of it free",
            cli_size((uint64_t)json_integer_value(json_object_get(said, "memory_free"))));
    }
    put_certificate(rest, "its", said);
    doctor_say(d,
               has_ended         ? DOCTOR_BROKEN
               : ends_soon(said) ? DOCTOR_NOTE
                                 : DOCTOR_OK,
               "agent", "%s%s", ends_soon(said) ? "its certificate is to be renewed; " : "", rest);
}

static void ask(struct doctor *d, void *arg)
{
    struct ws_source *agent = arg;
    struct ws_error err = {0};
    json_t *reply = NULL;
    struct rows rows = {0};
    if (agents_call(agent, "GET", "/v1/status", NULL, &reply, &err) < 0) {
        doctor_say(d, DOCTOR_BROKEN, "agent", "%s", err.text);
        return;
    }
    const json_t *models = json_object_get(reply, "models");
    say_agent(d, agent->url, json_array_size(models), json_object_get(reply, "machine"));
    collect(models, &rows);
    if (rows.n > 0)
        qsort(rows.ptr, rows.n, sizeof(*rows.ptr), compare);
    const json_int_t median = median_link(&rows);
    for (size_t i = 0; i < rows.n; i++)
        say(d, &rows.ptr[i], median);
    if (rows.n == 0)
        doctor_say(d, DOCTOR_NOTE, "mounts", "none has registered");
    free(rows.ptr);
    json_decref(reply);
}

void doctor_fleet(struct doctor *d, const struct cli_args *args)
{
    struct ws_source *agent = agents_open(args, FLEET_S);
    doctor_probe(d, &(struct doctor_probe){"agent", agent->url, FLEET_S, true, ask, agent});
    ws_source_close(agent);
}
