/* What an agent (--state) and a mount (state=) read of a process before, under libFuzzer. The first byte says which, and
 * whether the rest is the file, or its middle, to which head and hash are made: no random text has the right hash. What
 * is accepted is written as a text that is accepted again, and written the same. */
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/fleet/release.h"
#include "backends/trainer/agent/saved/saved_text.h"
#include "fs/engines/controller.h"
#include "fs/store/puller.h"
#include "fs/switch/settings.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/simd/copy.h"
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

/* malloc'ed, with a NUL behind it. */
static char *whole(const char *head, const uint8_t *data, size_t size, size_t *n)
{
    const size_t k = strlen(head);
    char *text = malloc(k + size + 32);
    require(text != NULL);
    memcpy(text, head, k);
    if (size)
        memcpy(text + k, data, size);
    *n = k + size;
    if (k)
        *n += (size_t)sprintf(text + *n, "end %016" PRIx64 "\n", ws_hash(text, *n));
    text[*n] = 0;
    return text;
}

/* --- an agent's --- */

static void begin(struct ws_agent *a)
{
    static const struct ws_agent_feature *const none[] = {NULL};
    memset(a, 0, sizeof(*a));
    a->features = none;
    pthread_mutex_init(&a->lock, NULL);
    ws_cond_init(&a->changed);
}

static void end(struct ws_agent *a)
{
    for (struct ws_release *r = a->releases, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    ws_agent_models_free(a);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
}

static void agents(char *text, size_t n)
{
    static struct ws_agent a, b;
    struct ws_error err = {0};
    begin(&a);
    if (ws_saved_read(&a, text, n, &err) == 0) {
        size_t size, again;
        char *written = ws_saved_text(&a, &size), *copy = written ? strdup(written) : NULL;
        require(copy && strlen(copy) == size);
        begin(&b);
        require(ws_saved_read(&b, copy, size, &err) == 0);
        char *same = ws_saved_text(&b, &again);
        require(same && again == size && !memcmp(same, written, size));
        free(same);
        end(&b);
        free(copy);
        free(written);
    } else {
        require(err.code > 0 && err.text[0]);
    }
    end(&a);
}

/* --- a mount's --- */

/* Nothing is pulled: no version is known. */
static int request(struct ws_version *v, enum ws_goal goal, enum ws_priority priority)
{
    (void)v;
    (void)goal;
    (void)priority;
    abort();
}

static void stop(struct ws_pull *p)
{
    (void)p;
    abort();
}

static void leave(struct ws_pull *p, unsigned index)
{
    (void)p;
    (void)index;
    abort();
}

static bool wants_all(const struct ws_pull *p)
{
    (void)p;
    abort();
}

static uint64_t progress_ns(const struct ws_pull *p)
{
    (void)p;
    abort();
}

static const struct ws_puller no_puller = {request, stop, leave, wants_all, progress_ns, NULL, NULL, NULL};

static bool add(void *arg, struct ws_controller *ctl, const char *line)
{
    (void)arg;
    require(ctl && ctl->name && line[0]);
    return true;
}

static void mounts(char *text, size_t n)
{
    const struct ws_store_options options = {.cache_bytes = 1 << 20, .deadline_ms = 1000, .threads = 1};
    static struct ws_control c;
    char left_out[WS_MAX_COMMAND + 1];
    struct ws_error err = {0};
    memset(&c, 0, sizeof(c));
    pthread_mutex_init(&c.lock, NULL);
    c.root.events = ws_event_log_new();
    require(c.root.events != NULL);
    require(ws_store_new(&c.store, &no_puller, &options, &err) == 0);
    const char *why = ws_settings_parse(&c, text, n, add, NULL, left_out);
    require(!why || !c.controllers);
    require(strlen(left_out) <= WS_MAX_COMMAND && !strchr(left_out, '\n'));
    ws_store_free(c.store);
    while (c.controllers) {
        struct ws_controller *ctl = c.controllers;
        c.controllers = ctl->next;
        ws_controller_release(ctl);
        free(ctl);
    }
    ws_controller_release(&c.root);
    pthread_mutex_destroy(&c.lock);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ws_log_set_level(WS_LOG_ERROR);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        void (*read)(char *text, size_t n);
        const char *head;
    } kinds[] = {
        {agents, ""}, {agents, "wsync-agent-state 1\n"}, {mounts, ""}, {mounts, "wsync-settings 1\n"}};
    size_t n;
    if (size == 0)
        return 0;
    const size_t k = data[0] % 4;
    char *text = whole(kinds[k].head, data + 1, size - 1, &n);
    kinds[k].read(text, n);
    free(text);
    return 0;
}
