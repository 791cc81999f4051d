#include "mount-helpers/doctor/transports.h"
#include "fs/store/transport_prefs.h"
#include "mount-helpers/cli/version.h"
#include "transports/nccl/driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void doctor_build(struct doctor *d)
{
    static const struct {
        const char *name;
        bool (*has)(const char **text);
    } parts[] = {
        {"build CUDA", cli_has_cuda}, {"build NCCL", cli_has_nccl}, {"build kernels", cli_has_kernels}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *text;
        bool has = parts[i].has(&text);
        doctor_say(d, has ? DOCTOR_OK : DOCTOR_NOTE, parts[i].name, "%s", text);
    }
}

/* Where there is a library that cannot be used, something is broken. */
static bool has_nccl(void)
{
    const char *text, *other = getenv("WSYNC_LIBNCCL");
    return cli_has_nccl(&text) && dlopen(other && *other ? other : "libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
}

void doctor_nccl(struct doctor *d)
{
    struct ws_error why = {0};
    int rc = ws_nccl_available(&why);
    int release = ws_nccl_release();
    if (rc == 0)
        doctor_say(d, DOCTOR_OK, "NCCL", "%d.%d.%d", release / 10000, release % 10000 / 100, release % 100);
    else
        doctor_say(d, has_nccl() ? DOCTOR_BROKEN : DOCTOR_NOTE, "NCCL", "%s", why.text);
}

void doctor_ways(struct doctor *d)
{
    const struct ws_transport_prefs fastest_first = {0};
    for (int rank = 0; rank < WS_N_WAYS; rank++) {
        const struct ws_way *w = &ws_ways[ws_transport_prefs_at(&fastest_first, rank)];
        struct ws_error why = {0};
        char name[40];
        int rc = ws_way_available(w, &why);
        snprintf(name, sizeof name, "strategy %s", w->name);
        doctor_say(d, rc == 0 ? DOCTOR_OK : DOCTOR_NOTE, name, "%s%s",
                   rc == 0 ? "can be used; it needs " : "not used: ", rc == 0 ? w->needs : why.text);
    }
}
