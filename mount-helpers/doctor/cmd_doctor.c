/* wsync doctor: what this machine has for wsync, tried out, and what is broken. */
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/doctor/probe.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL_S   120
#define TOPIC_S 60

static const struct cli_option options[] = {
    AGENTS_OPTIONS,
    {"fleet", 0, NULL, "the mounts of the agent, those that hold the others back first"},
    {"timeout", 0, "SECONDS", "longest time for all of it; default 120", 1, CLI_MAX_SECONDS},
    {"json", 'j', NULL, "print JSON"},
    {0},
};

static void tell(struct doctor *d, enum doctor_state state, const char *name, const char *text)
{
    json_t *o = json_pack("{s:s,s:i,s:s}", "name", name, "state", (int)state, "text", text);
    char *line = o ? json_dumps(o, JSON_COMPACT) : NULL, *whole = NULL;
    if (line && asprintf(&whole, "%s\n", line) > 0) {
        d->tell(d, whole);
        free(whole);
    }
    free(line);
    json_decref(o);
}

void doctor_say(struct doctor *d, enum doctor_state state, const char *name, const char *format, ...)
{
    static const char *const states[] = {"ok", "note", "broken"};
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    ws_text_clean(text);
    if (d->tell) {
        tell(d, state, name, text);
        return;
    }
    d->n_broken += state == DOCTOR_BROKEN;
    if (d->rows)
        json_array_append_new(d->rows,
                              json_pack("{s:s,s:s,s:s}", "name", name, "state", states[state], "text", text));
    else
        printf("%-6s  %-25s  %s\n", states[state], name, text);
}

static void look_at_ucx(struct doctor *d, void *arg)
{
    (void)arg;
    doctor_ucx(d);
}

static void look_at_gpus(struct doctor *d, void *arg)
{
    (void)arg;
    doctor_gpu(d);
}

static int run(const struct cli_args *args)
{
    const char *topic = cli_word(args, 0);
    struct doctor d = {.rows = cli_has(args, "json") ? json_array() : NULL,
                       .end_ms = ws_clock_ms() + cli_u64(args, "timeout", ALL_S) * 1000};
    const bool ucx = topic && strcmp(topic, "ucx") == 0;
    if (topic && !ucx && strcmp(topic, "gpu") != 0)
        return cli_usage("there is no topic '%s'; there are gpu and ucx", topic);
    if (topic && cli_has(args, "fleet"))
        return cli_usage("--fleet asks the agent, and %s looks at this machine: one of them", topic);
    if (cli_has(args, "fleet")) {
        doctor_fleet(&d, args);
    } else if (ucx) {
        doctor_probe(&d, &(struct doctor_probe){"UCX", "UCX and its fabric", TOPIC_S, .run = look_at_ucx});
    } else if (topic) {
        doctor_probe(
            &d, &(struct doctor_probe){"GPU", "the driver and its devices", TOPIC_S, .run = look_at_gpus});
    } else {
        doctor_machine(&d, args);
        doctor_access(&d, args);
    }
    if (d.rows) {
        int code = json_print(json_pack("{s:b,s:o}", "ok", d.n_broken == 0, "checks", d.rows));
        if (code != CLI_OK)
            return code;
    }
    return d.n_broken ? CLI_FAILED : CLI_OK;
}

const struct cli_command cmd_doctor = {
    .name = "doctor",
    .summary = "say what this machine has for wsync, and what of it is broken",
    .synopsis = "[OPTIONS] [gpu|ucx]\n[OPTIONS] --fleet",
    .description =
        "Without a topic: the kernel and how a mount's files can be read, libfuse, memory and its "
        "limits, the agent; who can read the mounts of this host, the agent's socket and its port; "
        "whether an engine of a mount has the base that an adapter there names. "
        "gpu: build, driver, devices, kernels, sharing, the ways between devices, NCCL, pinning "
        "with its speed, "
        "namespaces, and for each strategy whether it would be used, or why not. "
        "ucx: UCX's release, variables and transports, RDMA devices, and whether bytes come through.\n\n"
        "--fleet: what the agent (--agent) says of its machine and of its mounts, a line for each model and "
        "mount: "
        "first those that are silent, failed, or work on a release; then by measured speed, the slowest "
        "first. "
        "The agent says its version of wsync, kernel, memory, and when its certificate ends. A mount says "
        "the same of "
        "its own (of its client certificate), and of its first source the measured speed, the kernel's round "
        "trip, MTU and "
        "error; and its cache and clock, when it last had news for the agent; a mount of 0.1 says none of "
        "it. "
        "A certificate that ends within 14 days is a note. The agent has 20 s.\n\n"
        "A line says ok; note: it is not there, or there could be more, which is no failure; or "
        "broken: it is there "
        "and does not work. The exit status is 1 when something is broken. Each check has its own time, 5 s "
        "to 60 s, "
        "and all of them have --timeout; what takes longer is ended, and a line says so. gpu takes some 200 "
        "MiB "
        "of memory, and of a "
        "device, for a moment.",
    .examples = "wsync doctor\nwsync doctor --fleet --agent https://trainer:18861\nwsync doctor gpu\nwsync "
                "doctor ucx\nwsync doctor gpu --json | jq -r "
                "'.checks[] | select(.state "
                "!= \"ok\") | .text'",
    .options = options,
    .max_words = 1,
    .run = run,
};
