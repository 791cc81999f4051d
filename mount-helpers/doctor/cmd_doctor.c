/* wsync doctor: what this machine has for wsync, tried out, and what is broken. */
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/cli/json_text.h"
#include "mount-helpers/doctor/doctor.h"
#include "transports/base/text.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct cli_option options[] = {
    AGENTS_OPTIONS,
    {"json", 'j', NULL, "print JSON"},
    {0},
};

void doctor_say(struct doctor *d, enum doctor_state state, const char *name, const char *format, ...)
{
    static const char *const states[] = {"ok", "note", "broken"};
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    ws_text_clean(text);
    d->n_broken += state == DOCTOR_BROKEN;
    if (d->rows)
        json_array_append_new(d->rows,
                              json_pack("{s:s,s:s,s:s}", "name", name, "state", states[state], "text", text));
    else
        printf("%-6s  %-25s  %s\n", states[state], name, text);
}

static int run(const struct cli_args *args)
{
    const char *topic = cli_word(args, 0);
    struct doctor d = {.rows = cli_has(args, "json") ? json_array() : NULL};
    const bool ucx = topic && strcmp(topic, "ucx") == 0;
    if (topic && !ucx && strcmp(topic, "gpu") != 0)
        return cli_usage("there is no topic '%s'; there are gpu and ucx", topic);
    if (ucx) {
        doctor_ucx(&d);
    } else if (topic) {
        doctor_gpu(&d);
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
    .synopsis = "[OPTIONS] [gpu|ucx]",
    .description =
        "Without a topic: the kernel and how a mount's files can be read, libfuse, memory and its "
        "limits, the agent; who can read the mounts of this host, the agent's socket and its port; "
        "whether an engine of a mount has the base that an adapter there names. "
        "gpu: build, driver, devices, kernels, sharing, the ways between devices, NCCL, pinning "
        "with its speed, "
        "namespaces, and for each strategy whether it would be used, or why not. "
        "ucx: UCX's release, variables and transports, RDMA devices, and whether bytes come through.\n\n"
        "A line says ok; note: it is not there, or there could be more, which is no failure; or "
        "broken: it is there "
        "and does not work. The exit status is 1 when something is broken. gpu takes some 200 MiB "
        "of memory, and of a "
        "device, for a moment.",
    .examples = "wsync doctor\nwsync doctor gpu\nwsync doctor ucx\nwsync doctor gpu --json | jq -r "
                "'.checks[] | select(.state "
                "!= \"ok\") | .text'",
    .options = options,
    .max_words = 1,
    .run = run,
};
