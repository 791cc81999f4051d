/* The calls of an engine's table, one a run, for tests with real servers:
 *   engine_calls KIND URL probe | list | load NAME PATH | unload NAME | pause | resume | draft PATH
 * Prints what the call found, a line each, and then "ok"; or the errno's number and the sentence. */
#include "backends/engine/engine.h"
#include "transports/http/client.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 100000

static struct ws_engine_adapters adapters;

static int list(const struct ws_engine_ops *ops, const struct ws_engine_target *t, struct ws_error *err)
{
    int rc = ops->adapters(t, &adapters, err);
    for (size_t i = 0; rc == 0 && i < adapters.n; i++)
        printf("%s %s\n", adapters.items[i].name, adapters.items[i].path);
    return rc;
}

static int probe(const struct ws_engine_ops *ops, const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_engine_facts facts;
    struct ws_engine_serving now;
    int rc = ops->probe(t, &facts, &now, err);
    if (rc == 0)
        printf("release=%s rank=%u draft=%s loads_draft=%d frees_int8_scales=%d\n", facts.release,
               facts.max_adapter_rank, facts.draft, facts.loads_draft, facts.frees_int8_scales);
    return rc;
}

int main(int argc, char **argv)
{
    const struct ws_engine_ops *ops = argc > 3 ? ws_engine_find(argv[1]) : NULL;
    struct ws_http_client *http;
    struct ws_error err = {0};
    if (!ops || ws_http_client_new(&http, &err) < 0) {
        fprintf(stderr, "usage: engine_calls KIND URL COMMAND [ARGS] %s\n", err.text);
        return 2;
    }
    const struct ws_engine_target t = {.http = http, .url = argv[2], .timeout_ms = TIMEOUT_MS};
    const char *what = argv[3], *first = argc > 4 ? argv[4] : "", *second = argc > 5 ? argv[5] : "";
    int rc = strcmp(what, "probe") == 0    ? probe(ops, &t, &err)
             : strcmp(what, "list") == 0   ? list(ops, &t, &err)
             : strcmp(what, "load") == 0   ? ops->adapter_load(&t, first, second, &err)
             : strcmp(what, "unload") == 0 ? ops->adapter_unload(&t, first, &err)
             : strcmp(what, "pause") == 0  ? ops->pause(&t, &err)
             : strcmp(what, "resume") == 0 ? ops->resume(&t, &err)
             : strcmp(what, "draft") == 0  ? ops->load_draft(&t, first, "1", &err)
                                           : ws_error_set(&err, 22, "no such command");
    if (rc)
        printf("%d %s\n", -rc, err.text);
    else
        puts("ok");
    ws_http_client_free(http);
    return 0;
}
