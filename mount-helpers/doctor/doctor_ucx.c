/* wsync doctor ucx: UCX's release, what it finds here, and whether bytes come through. */
#include "mount-helpers/doctor/doctor.h"
#include "transports/base/clock.h"
#include "transports/ucx/engine.h"
#include "transports/ways.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TRIED_BYTES (8UL << 20)
#define TRIED_MS    10000

extern char **environ;

/* "UCX_TLS=tcp", as they are set. */
static void say_variables(struct doctor *d)
{
    static const char *const ours[] = {"UCX_HANDLE_ERRORS=", "UCX_LOG_LEVEL=", "UCX_WARN_UNUSED_ENV_VARS="};
    char text[512] = "";
    for (char **e = environ; *e; e++) {
        bool other = strncmp(*e, "UCX_", 4) == 0;
        for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
            other = other && strncmp(*e, ours[i], strlen(ours[i])) != 0;
        const size_t n = strlen(text);
        if (other)
            snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", *e);
    }
    doctor_say(d, DOCTOR_OK, "UCX variables", "%s", text[0] ? text : "none is set: UCX chooses");
}

/* Of UCX's own lines "resource 1 : md 1 dev 1 flags -- tcp/lo", what is behind the dashes. */
static void say_resources(struct doctor *d)
{
    char *text = NULL, all[700] = "", *next;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return;
    ws_ucx_describe(f);
    fclose(f);
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        const char *name = strstr(line, "resource ") ? strstr(line, "-- ") : NULL;
        const size_t used = strlen(all);
        if (name)
            snprintf(all + used, sizeof all - used, "%s%s", used ? " " : "", name + 3);
    }
    free(text);
    doctor_say(d, DOCTOR_OK, "UCX transports", "%s", all);
}

static void say_fabric(struct doctor *d)
{
    char all[256] = "";
    DIR *dir = opendir("/sys/class/infiniband");
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        const size_t used = strlen(all);
        if (e->d_name[0] != '.')
            snprintf(all + used, sizeof all - used, "%s%s", used ? " " : "", e->d_name);
    }
    if (dir)
        closedir(dir);
    if (all[0])
        doctor_say(d, DOCTOR_OK, "RDMA devices", "%s", all);
    else
        doctor_say(d, DOCTOR_NOTE, "RDMA devices",
                   "none in /sys/class/infiniband: UCX would use TCP, or shared memory on one host");
}

/* A message from one worker to another one of this process, whose data is fetched. */
struct tried {
    struct ws_ucx_worker *to, *from;
    unsigned char *dst;
    bool done;
    int rc;
};

static void on_done(void *arg, int rc)
{
    struct tried *t = arg;
    t->done = true;
    t->rc = t->rc < 0 ? t->rc : rc;
}

static void on_sent(void *arg, int rc)
{
    if (rc < 0)
        on_done(arg, rc);
}

static bool on_message(void *arg, const struct ws_ucx_message *m)
{
    struct tried *t = arg;
    if (!m->data || m->bytes != TRIED_BYTES ||
        ws_ucx_receive(t->to, m->data, t->dst, m->bytes, on_done, t) < 0)
        on_done(t, -1);
    return m->data != NULL;
}

static int move(struct tried *t, unsigned char *src, struct ws_ucx_memory *memory, struct ws_error *err)
{
    unsigned char address[WS_UCX_ADDRESS_BYTES];
    size_t n;
    int rc = ws_ucx_worker_address(t->to, address, &n, err);
    if (rc == 0)
        rc = ws_ucx_connect(t->from, address, n, err);
    if (rc == 0)
        rc = ws_ucx_send(t->from, "t", 1, memory, src, TRIED_BYTES, on_sent, t);
    for (const uint64_t end = ws_clock_ms() + TRIED_MS; rc == 0 && !t->done && ws_clock_ms() < end;) {
        (void)ws_ucx_progress(t->from);
        (void)ws_ucx_progress(t->to);
    }
    if (rc == 0 && (!t->done || t->rc < 0 || memcmp(src, t->dst, TRIED_BYTES) != 0))
        rc = ws_error_set(err, EIO, "%s", t->done ? "other bytes arrived" : "nothing arrived in time");
    return rc;
}

static void try_it(struct doctor *d)
{
    struct ws_error err = {0};
    struct tried t = {.dst = malloc(TRIED_BYTES)};
    struct ws_ucx_memory *memory = NULL;
    unsigned char *src = malloc(TRIED_BYTES);
    int rc = src && t.dst ? 0 : ws_error_set(&err, ENOMEM, "no memory");
    for (size_t i = 0; rc == 0 && i < TRIED_BYTES; i++)
        src[i] = (unsigned char)(i * 31 >> 3);
    if (rc == 0)
        rc = ws_ucx_memory_new(&memory, src, TRIED_BYTES, &err);
    if (rc == 0)
        rc = ws_ucx_worker_new(&t.to, on_message, &t, &err);
    if (rc == 0)
        rc = ws_ucx_worker_new(&t.from, on_message, &t, &err);
    if (rc == 0)
        rc = move(&t, src, memory, &err);
    ws_ucx_worker_free(t.to);
    ws_ucx_worker_free(t.from);
    ws_ucx_memory_free(memory);
    free(t.dst);
    free(src);
    if (rc == 0)
        doctor_say(d, DOCTOR_OK, "UCX tried", "8 MiB came from one worker of this process to another one");
    else
        doctor_say(d, DOCTOR_BROKEN, "UCX tried", "%s", err.text);
}

void doctor_ucx(struct doctor *d)
{
    const struct ws_way *w = ws_way_find("ucx");
    const char *other = getenv("WSYNC_LIBUCP");
    struct ws_error why = {0};
    say_variables(d);
    const int rc = ws_ucx_available(&why);
    if (rc == 0) {
        doctor_say(d, DOCTOR_OK, "UCX", "%s", ws_ucx_release());
        say_resources(d);
    } else { /* where there is a library that cannot be used, something is broken */
        void *there = *ws_ucx_build() ? dlopen(other && *other ? other : "libucp.so.0", RTLD_LAZY) : NULL;
        doctor_say(d, there ? DOCTOR_BROKEN : DOCTOR_NOTE, "UCX", "%s", why.text);
    }
    say_fabric(d);
    if (rc == 0)
        try_it(d);
    doctor_say(d, rc == 0 ? DOCTOR_OK : DOCTOR_NOTE, "strategy ucx", "%s%s",
               rc == 0 ? "can be used; it needs " : "not used: ", rc == 0 ? w->needs : why.text);
}
