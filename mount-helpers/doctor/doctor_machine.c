/* What a machine has for mounts and agents, without a GPU. */
#include "fs/fuse/reads.h"
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/cli/version.h"
#include "mount-helpers/doctor/grant.h"
#include "mount-helpers/doctor/probe.h"
#include "transports/memory/available.h"
#include "transports/memory/region.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define ENOUGH_FILES 4096
#define MACHINE_S    10
#define AGENT_S      20

static void kernel(struct doctor *d)
{
    struct utsname u;
    const char *lack = ws_reads_lack_passthrough();
    char libfuse[64];
    if (uname(&u) == 0)
        doctor_say(d, DOCTOR_OK, "kernel", "%s %s, %s", u.sysname, u.release, u.machine);
    if (access("/dev/fuse", R_OK | W_OK) == 0)
        doctor_say(d, DOCTOR_OK, "fuse", "/dev/fuse can be opened");
    else
        doctor_say(d, DOCTOR_NOTE, "fuse", "no mounts here: /dev/fuse: %s", strerror(errno));
    cli_libfuse_text(libfuse);
    doctor_say(d, DOCTOR_OK, "libfuse", "%s", libfuse);
    doctor_say(d, lack ? DOCTOR_NOTE : DOCTOR_OK, "passthrough", "%s%s",
               lack ? "complete files are read by links or through the daemon: "
                    : "complete files are read by it",
               lack ? lack : "");
    if (access("/dev/fuse", R_OK | W_OK) != 0 || ws_reads_lack_privilege())
        doctor_say(d, DOCTOR_NOTE, "grant", "%s", doctor_grant());
}

static void memory(struct doctor *d)
{
    char why[WS_ERROR_TEXT] = "";
    const int tmpfs = ws_region_tmpfs();
    const uint64_t bytes = ws_memory_available(why);
    if (tmpfs >= 0)
        doctor_say(d, DOCTOR_OK, "huge pages", "regions are files of a huge-page tmpfs");
    else
        doctor_say(d, DOCTOR_NOTE, "huge pages", "regions are memfds, since a tmpfs cannot be mounted: %s",
                   strerror(-tmpfs));
    if (bytes == UINT64_MAX)
        doctor_say(d, DOCTOR_NOTE, "memory", "the system does not say how much may be taken");
    else
        doctor_say(d, DOCTOR_OK, "memory", "%s may be taken now (%s)", cli_size(bytes), why);
}

static void limit(struct doctor *d, int which, const char *name, rlim_t enough, const char *unit,
                  const char *what)
{
    struct rlimit l;
    if (getrlimit(which, &l) != 0)
        return;
    if (l.rlim_cur == RLIM_INFINITY)
        doctor_say(d, DOCTOR_OK, name, "unlimited");
    else
        doctor_say(d, l.rlim_cur >= enough ? DOCTOR_OK : DOCTOR_NOTE, name, "%" PRIu64 "%s%s%s",
                   (uint64_t)l.rlim_cur, unit, l.rlim_cur >= enough ? "" : ": ",
                   l.rlim_cur >= enough ? "" : what);
}

static void ask_agent(struct doctor *d, void *source)
{
    struct ws_source *s = source;
    struct ws_error err = {0};
    json_t *models = NULL;
    if (ws_source_models(s, NULL, 0, 0, NULL, &models, &err) == 0)
        doctor_say(d, DOCTOR_OK, "agent", "%s answers and lists %zu models", s->url,
                   json_array_size(json_object_get(models, "models")));
    else
        doctor_say(d, DOCTOR_BROKEN, "agent", "%s does not answer: %s", s->url, err.text);
    json_decref(models);
}

static void agent(struct doctor *d, const struct cli_args *args)
{
    const char *named = cli_get(args, "agent") ? cli_get(args, "agent") : getenv("WSYNC_AGENT");
    struct stat st;
    if ((!named || !*named) && stat(WS_AGENT_SOCKET, &st) != 0) {
        doctor_say(d, DOCTOR_NOTE, "agent",
                   "none on this host at " WS_AGENT_SOCKET "; --agent names another");
        return;
    }
    struct ws_source *s = agents_open(args, 0);
    doctor_probe(d, &(struct doctor_probe){"agent", s->url, AGENT_S, true, ask_agent, s});
    ws_source_close(s);
}

static void look_at_machine(struct doctor *d, void *arg)
{
    (void)arg;
    kernel(d);
    memory(d);
    limit(d, RLIMIT_MEMLOCK, "locked memory", RLIM_INFINITY, " bytes",
          "a GPU's driver may refuse to pin more: raise LimitMEMLOCK, ulimit -l");
    limit(d, RLIMIT_NOFILE, "open files", ENOUGH_FILES, "",
          "few for versions of many files: raise LimitNOFILE, ulimit -n");
}

void doctor_machine(struct doctor *d, const struct cli_args *args)
{
    doctor_probe(
        d, &(struct doctor_probe){"kernel", "kernel, memory and limits", MACHINE_S, .run = look_at_machine});
    agent(d, args);
}
