/* wsync topology: which mount asks which other one first, as the agent says it (backends/trainer/agent/fleet/topology.h). */
#include "mount-helpers/cli/agents.h"
#include "transports/base/text.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    AGENTS_OPTIONS,
    {"json", 'j', NULL, "print the agent's answer, one JSON object"},
    {0},
};

#define MAX_STRIPES  64
#define INDENT_CHARS 1024

struct drawing {
    const json_t *mounts;
    size_t stripe;
};

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* NULL: the agent. */
static const char *parent_of(const struct drawing *d, const json_t *mount)
{
    return json_string_value(json_array_get(json_object_get(mount, "parents"), d->stripe));
}

static bool is_child(const struct drawing *d, const json_t *mount, const char *parent)
{
    const char *own = parent_of(d, mount);
    if (json_array_size(json_object_get(mount, "parents")) <= d->stripe)
        return false; /* it is not planned yet */
    return parent ? own && strcmp(own, parent) == 0 : !own;
}

static size_t count_children(const struct drawing *d, const char *parent)
{
    const json_t *mount;
    size_t i, n = 0;
    json_array_foreach(d->mounts, i, mount)
    {
        n += is_child(d, mount, parent);
    }
    return n;
}

static void print_name(const json_t *mount)
{
    char name[WS_MOUNT_ID_CHARS + 1];
    snprintf(name, sizeof name, "%s", text_of(mount, "mount"));
    ws_text_clean(name); /* from outside, onto a terminal */
    fputs(name, stdout);
}

static void print_mount(const json_t *mount)
{
    char rack[WS_MAX_NAME + 1];
    const json_int_t rtt = json_integer_value(json_object_get(mount, "rtt_us"));
    snprintf(rack, sizeof rack, "%s", text_of(mount, "rack"));
    ws_text_clean(rack);
    print_name(mount);
    printf("  rack=%s", rack);
    if (rtt > 0)
        printf(" rtt=%.1fms", (double)rtt / 1000);
    if (json_is_true(json_object_get(mount, "slow")))
        printf(" slow");
    putchar('\n');
}

/* Those without children of their own, on one line. */
static void draw_leaves(const struct drawing *d, const char *parent, const char *indent)
{
    const json_t *mount;
    size_t i, n = 0;
    json_array_foreach(d->mounts, i, mount)
    {
        if (!is_child(d, mount, parent) || count_children(d, text_of(mount, "mount")) > 0)
            continue;
        fputs(n++ == 0 ? indent : ", ", stdout);
        if (n == 1)
            fputs("`- ", stdout);
        print_name(mount);
    }
    if (n > 0)
        putchar('\n');
}

static void draw_below(const struct drawing *d, const char *parent, const char *indent, unsigned depth)
{
    const json_t *mount;
    size_t i, left = 0, leaves = 0;
    json_array_foreach(d->mounts, i, mount)
    {
        if (!is_child(d, mount, parent))
            continue;
        const bool is_leaf = count_children(d, text_of(mount, "mount")) == 0;
        leaves += is_leaf;
        left += !is_leaf;
    }
    json_array_foreach(d->mounts, i, mount)
    {
        const char *name = text_of(mount, "mount");
        char deeper[INDENT_CHARS];
        if (!is_child(d, mount, parent) || count_children(d, name) == 0)
            continue;
        const bool is_last = --left == 0 && leaves == 0;
        printf("%s%c- ", indent, is_last ? '`' : '|');
        print_mount(mount);
        snprintf(deeper, sizeof deeper, "%s%s", indent, is_last ? "   " : "|  ");
        if (depth <
            json_array_size(d->mounts)) /* an agent that answers with a ring is not followed round it */
            draw_below(d, name, deeper, depth + 1);
    }
    draw_leaves(d, parent, indent);
}

static int draw(const json_t *reply, const char *agent)
{
    struct drawing d = {.mounts = json_object_get(reply, "mounts")};
    const size_t stripes = (size_t)json_integer_value(json_object_get(reply, "stripes"));
    if (!json_is_array(d.mounts) || stripes > MAX_STRIPES)
        return cli_fail("the answer of the agent is none of its topology");
    if (json_array_size(d.mounts) == 0) {
        printf("no mount asks for a place in a tree (-o topology=auto)\n");
        return CLI_OK;
    }
    for (; d.stripe < stripes; d.stripe++) {
        printf("stripe %zu of %zu\n%s\n", d.stripe, stripes, agent);
        draw_below(&d, NULL, "", 0);
    }
    return CLI_OK;
}

static int run(const struct cli_args *args)
{
    char path[WS_API_PATH_BYTES];
    struct ws_error err = {0};
    json_t *reply = NULL;
    struct ws_source *agent = agents_open(args, 0);
    int code;
    ws_api_model_path(path, "topology", cli_word(args, 0));
    const int rc = agents_call(agent, "GET", path, NULL, &reply, &err);
    if (rc < 0) {
        code = cli_fail("%s", err.text);
    } else if (cli_has(args, "json")) {
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
        code = CLI_OK;
    } else {
        code = draw(reply, agent->url);
    }
    json_decref(reply);
    ws_source_close(agent);
    return code;
}

const struct cli_command cmd_topology = {
    .name = "topology",
    .summary = "draw which mount asks which other one first",
    .synopsis = "[OPTIONS] MODEL",
    .description =
        "Mounts with `-o topology=auto` are told by the agent which serving mount they ask first. The blocks "
        "of a "
        "version are dealt out to stripes, and each stripe has a tree of its own, with the agent at its "
        "root: a mount "
        "that passes one stripe on is a leaf of the others. Mounts without children are on one line.\n\n"
        "It needs the role read. With several nodes of a trainer the primary answers.",
    .examples = "wsync topology actor\nwsync topology --agent https://trainer:18861 --json actor",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
