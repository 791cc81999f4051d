/* A model of 2.1 TB (large_model.h): how long its manifest takes to be made out of what a rank registers, to be sent,
 * parsed, and planned against a delta; how long the first list of its tensors takes through a mount, and how much
 * memory the mount has then. No bytes of the model exist: of a base that is here the memory is sparse. Beside each time the
 * CPU time is printed, of both sides, which does not depend on other work on the machine. */
#include "fs/pull/block_table.h"
#include "fs/pull/delta_plan.h"
#include "fs/pull/pull.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "tests/bench/common.h"
#include "tests/bench/large_model.h"
#include "transports/tcp/tcp.h"
#include "transports/transport.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 5
#define MIB    (1024.0 * 1024.0)

/* What something took: of the clock, and of this process's CPUs. */
struct took {
    double seconds, cpu;
};

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct took begin(void)
{
    return (struct took){.seconds = bench_now(), .cpu = cpu_now()};
}

static struct took since(struct took start)
{
    return (struct took){.seconds = bench_now() - start.seconds, .cpu = cpu_now() - start.cpu};
}

static void at_most_a_second(const char *name, struct took t)
{
    bench_row(&(struct bench_row){name, t.seconds, "s", 0, BENCH_AT_MOST, 1.0});
    printf("    %.3f s of CPU\n", t.cpu);
}

static void measure(const char *name, struct took (*run)(void *arg), void *arg)
{
    double seconds[ROUNDS], cpu[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++) {
        const struct took t = run(arg);
        seconds[i] = t.seconds;
        cpu[i] = t.cpu;
    }
    at_most_a_second(name, (struct took){bench_median(seconds, ROUNDS), bench_median(cpu, ROUNDS)});
}

/* --- made, sent, parsed --- */

static struct took make(void *arg)
{
    struct ws_registration *r = large_model_registration();
    struct ws_error err = {0};
    char *json;
    size_t n;
    (void)arg;
    struct took start = begin();
    struct ws_placement *l = large_model_placement(r);
    const struct took placed = since(start);
    uint64_t *hashes = large_model_header_hashes(l); /* a finisher's work, of all blocks */
    start = begin();
    struct ws_manifest *m = large_model_manifest(l, hashes, 1);
    if (ws_manifest_to_json(m, &json, &n, &err) < 0)
        bench_fail("%s", err.text);
    const struct took made = since(start);
    free(json);
    free(hashes);
    ws_manifest_free(m);
    ws_placement_free(l);
    ws_registration_free(r);
    return (struct took){placed.seconds + made.seconds, placed.cpu + made.cpu};
}

static struct took get(void *arg)
{
    struct ws_manifest *m = NULL;
    struct ws_error err = {0};
    const struct took start = begin();
    if (ws_source_manifest(arg, LARGE_MODEL_NAME, 2, LARGE_MODEL_RUN, NULL, &m, &err) < 0)
        bench_fail("%s", err.text);
    const struct took t = since(start);
    ws_manifest_free(m);
    return t;
}

struct text {
    char *json;
    size_t n;
};

static struct took parse(void *arg)
{
    const struct text *text = arg;
    struct ws_manifest *m = NULL;
    struct ws_error err = {0};
    const struct took start = begin();
    if (ws_manifest_from_json(text->json, text->n, &m, &err) < 0)
        bench_fail("%s", err.text);
    const struct took t = since(start);
    ws_manifest_free(m);
    return t;
}

/* --- planned --- */

static struct ws_version *version_of(struct ws_store *store, const char *name)
{
    for (int i = 0; i < 500; i++) {
        struct ws_model *m = ws_store_find(store, LARGE_MODEL_NAME);
        struct ws_version *v = m ? ws_version_find(m, name, NULL) : NULL;
        if (m)
            ws_model_put(m);
        if (v)
            return v;
        usleep(10000);
    }
    bench_fail("version %s did not appear", name);
}

/* As if it had been pulled: its memory is there, and no page of it. */
static void have_come(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_error err = {0};
    for (size_t i = 0; i < m->n_files; i++) {
        struct ws_region *r;
        if (ws_region_new(&r, m->files[i].size_bytes, &err) < 0)
            bench_fail("%s", err.text);
        atomic_store(&v->files[i].region, r);
        ws_content_arrived_all(v, i);
    }
    pthread_mutex_lock(&v->store->lock);
    v->own_bytes = m->total_bytes;
    v->store->used_bytes += m->total_bytes;
    atomic_store(&v->complete, true);
    pthread_mutex_unlock(&v->store->lock);
}

/* The store is left behind at the end: its memory of 2 TB is not for a pool. */
static struct took plan(const char *url)
{
    struct ws_store_options o = {.keep = 1, .cache_bytes = 1UL << 43};
    struct ws_store *store;
    struct ws_error err = {0};
    struct ws_source_select sel;
    static struct ws_delta_chain chain;
    struct ws_delta_plan p = {0};
    struct ws_block_table table;
    char why[WS_HOW_CHARS] = "";
    if (ws_store_new(&store, &ws_puller, &o, &err) < 0 || ws_store_add(store, url, NULL, NULL, &err) < 0)
        bench_fail("%s", err.text);
    struct ws_version *base = version_of(store, "1"), *v = version_of(store, "2");
    if (!ws_version_manifest(base, &err) || !ws_version_manifest(v, &err))
        bench_fail("%s", err.text);
    have_come(base);
    ws_version_put(base); /* which the plan takes the memory of */
    const struct took start = begin();
    pthread_mutex_lock(&store->lock);
    v->partial = v->sources; /* there is no other way, however long it may take */
    store->options.keep = 0; /* the base may go */
    ws_source_select_init(&sel, v);
    pthread_mutex_unlock(&store->lock);
    if (ws_delta_chain_query(&sel, &chain, &err) < 0)
        bench_fail("%s", err.text);
    const int rc = ws_delta_plan_make(&p, &sel, &chain, why, &err);
    if (rc != 1 || p.n_steps != 1 || ws_block_table_init(&table, v) < 0)
        bench_fail("there is no plan (%d): %s %s", rc, why, err.text);
    const struct took t = since(start);
    ws_block_table_release(&table);
    ws_delta_plan_release(&p);
    ws_source_select_release(&sel);
    return t;
}

/* --- listed --- */

struct mount {
    pid_t pid;
    char at[256];
};

static void unmount(const struct mount *m)
{
    kill(m->pid, SIGTERM);
    waitpid(m->pid, NULL, 0);
    (void)umount2(m->at, MNT_DETACH);
    rmdir(m->at);
}

static struct mount mount_of(const char *url)
{
    struct mount m = {.pid = -1};
    char options[512], probe[300];
    const char *wsync = getenv("WSYNC"), *folder = getenv("TESTDIR");
    struct stat st;
    snprintf(m.at, sizeof(m.at), "%s/large", folder ? folder : "/tmp");
    snprintf(options, sizeof(options), "state=%s/large.state", folder ? folder : "/tmp");
    char *args[] = {"wsync", "mount", "-f", "-o", options, (char *)(uintptr_t)url, m.at, NULL};
    (void)mkdir(m.at, 0700);
    if (posix_spawn(&m.pid, wsync ? wsync : "build/wsync", NULL, NULL, args, environ) != 0)
        bench_fail("cannot start the mount");
    snprintf(probe, sizeof(probe), "%s/" LARGE_MODEL_NAME "/1", m.at);
    for (int i = 0; i < 1000; i++) {
        if (stat(probe, &st) == 0)
            return m;
        usleep(10000);
    }
    unmount(&m);
    bench_fail("the mount did not come up");
}

static size_t list(const char *path)
{
    DIR *d = opendir(path);
    size_t n = 0;
    if (!d)
        bench_fail("cannot list %s: %s", path, strerror(errno));
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static double private_mib(pid_t pid)
{
    char path[64], line[256];
    unsigned long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f) && sscanf(line, "RssAnon: %lu", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return (double)kib / 1024.0;
}

static void through_a_mount(const char *url)
{
    char path[300];
    if (access("/dev/fuse", W_OK) != 0 || geteuid() != 0) {
        printf("  manifest-2tb-listed, manifest-2tb-memory: skipped: no /dev/fuse, or not root\n");
        return;
    }
    const struct mount m = mount_of(url);
    double seconds[2], cpu[2];
    for (unsigned v = 1; v <= 2; v++) {
        snprintf(path, sizeof(path), "%s/" LARGE_MODEL_NAME "/%u/tensors", m.at, v);
        const double before = bench_cpu_of(m.pid);
        const struct took start = begin();
        const size_t n = list(path);
        const struct took t = since(start);
        seconds[v - 1] = t.seconds;
        cpu[v - 1] = t.cpu + bench_cpu_of(m.pid) - before;
        if (n != LARGE_MODEL_TENSORS)
            bench_fail("%zu tensors are listed", n);
    }
    const double mib = private_mib(m.pid);
    unmount(&m);
    at_most_a_second("manifest-2tb-listed", (struct took){bench_median(seconds, 2), bench_median(cpu, 2)});
    bench_row(&(struct bench_row){"manifest-2tb-memory", mib, "MiB", 0, BENCH_AT_MOST, 256});
}

int main(void)
{
    struct ws_error err = {0};
    struct ws_tcp_server_options so = {.listen = "127.0.0.1:0", .access.insecure = true};
    struct ws_tcp_server *server;
    struct ws_source *source;
    struct text text;
    char url[64];

    measure("manifest-2tb-made", make, NULL);
    struct ws_registration *r = large_model_registration();
    struct ws_placement *l = large_model_placement(r);
    uint64_t *hashes = large_model_header_hashes(l);
    struct ws_manifest *manifests[2] = {large_model_manifest(l, hashes, 1),
                                        large_model_manifest(l, hashes, 2)};
    struct large_model *model = large_model_new(l, manifests);
    const struct ws_catalog catalog = large_model_catalog(model);
    if (ws_tcp_server_new(&server, &catalog, &so, &err) < 0)
        bench_fail("%s", err.text);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", ws_tcp_server_port(server));
    if (ws_source_open(url, &(struct ws_source_options){0}, &source, &err) < 0 ||
        ws_manifest_to_json(manifests[1], &text.json, &text.n, &err) < 0)
        bench_fail("%s", err.text);
    printf("  %zu files, %.1f TB, text of %.1f MiB\n", manifests[0]->n_files,
           (double)manifests[0]->total_bytes / 1e12, (double)text.n / MIB);
    measure("manifest-2tb-sent", get, source);
    measure("manifest-2tb-parsed", parse, &text);
    through_a_mount(url);
    at_most_a_second("manifest-2tb-planned", plan(url));
    fflush(stdout);
    _exit(0);
}
