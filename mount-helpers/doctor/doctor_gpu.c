/* What GPUs and their driver can do for wsync here, tried out with 64 MiB. A step that fails ends the trial
 * of its device, since what follows would say the same. */
#include "mount-helpers/cli/version.h"
#include "mount-helpers/doctor/doctor.h"
#include "mount-helpers/doctor/doctor_kernels.h"
#include "mount-helpers/doctor/transports.h"
#include "transports/device/device.h"
#include "transports/memory/region.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIAL_BYTES (64UL << 20)
#define NAME_CHARS  32

static const struct ws_device_ops *const gpu = &ws_cuda_device;

/* --- one device --- */

struct trial {
    struct doctor *doctor;
    int device;
    struct ws_device_queue *queue;
    unsigned char *memory; /* of the device */
};

static void say(struct trial *t, enum doctor_state state, const char *what, const char *text)
{
    char name[NAME_CHARS];
    snprintf(name, sizeof name, "device %d%s%s", t->device, what[0] ? " " : "", what);
    doctor_say(t->doctor, state, name, "%s", text);
}

static int describe(struct trial *t)
{
    struct ws_device_info i;
    struct ws_error err = {0};
    char text[256];
    int rc = gpu->describe(t->device, &i, &err);
    if (rc < 0) {
        say(t, DOCTOR_BROKEN, "", err.text);
        return rc;
    }
    snprintf(text, sizeof text, "%s, %s, bus %s, capability %u.%u, %s free of %s", i.name, i.uuid, i.bus,
             i.major, i.minor, cli_size(i.free_bytes), cli_size(i.total_bytes));
    say(t, DOCTOR_OK, "", text);
    snprintf(text, sizeof text, "memory and marks by handles: %s; mapped memory by descriptors: %s",
             i.legacy ? "yes" : "no", i.by_fd ? "yes" : "no");
    say(t, i.legacy || i.by_fd ? DOCTOR_OK : DOCTOR_NOTE, "sharing", text);
    return 0;
}

static void kernels(struct trial *t)
{
    struct ws_error err = {0};
    int rc = gpu->has_kernels(t->device, &err);
    if (rc == 0)
        rc = doctor_try_kernels(t->queue, t->memory, &err);
    say(t,
        rc == 0          ? DOCTOR_OK
        : rc == -ENOTSUP ? DOCTOR_NOTE
                         : DOCTOR_BROKEN,
        "kernels", rc == 0 ? "run here" : err.text);
}

/* Bytes to the device and back, in seconds; -EBADMSG: they came back as others. */
static int copy_both_ways(struct trial *t, unsigned char *host, double *to, double *from,
                          struct ws_error *err)
{
    for (size_t i = 0; i < TRIAL_BYTES; i++)
        host[i] = (unsigned char)(i * 31 + i / 4093);
    double start = cli_now();
    int rc = gpu->copy(t->queue, t->memory, host, TRIAL_BYTES, err);
    if (rc == 0)
        rc = gpu->finish(t->queue, err);
    *to = cli_now() - start;
    if (rc < 0)
        return rc;
    memset(host, 0, TRIAL_BYTES);
    start = cli_now();
    rc = gpu->copy(t->queue, host, t->memory, TRIAL_BYTES, err);
    if (rc == 0)
        rc = gpu->finish(t->queue, err);
    *from = cli_now() - start;
    for (size_t i = 0; rc == 0 && i < TRIAL_BYTES; i++)
        if (host[i] != (unsigned char)(i * 31 + i / 4093))
            rc = ws_error_set(err, EBADMSG, "byte %zu came back as another one", i);
    return rc;
}

static int copies(struct trial *t, const char *what, const char *how, unsigned char *host, double pinning)
{
    struct ws_error err = {0};
    char text[256], pinned[64] = "";
    double to = 0, from = 0;
    int rc = copy_both_ways(t, host, &to, &from, &err);
    if (pinning >= 0)
        snprintf(pinned, sizeof pinned, "%s at %s; ", how, cli_rate(TRIAL_BYTES, pinning));
    snprintf(text, sizeof text, "%s%s to it, %s from it", pinned, cli_rate(TRIAL_BYTES, to),
             cli_rate(TRIAL_BYTES, from));
    say(t, rc == 0 ? DOCTOR_OK : DOCTOR_BROKEN, what, rc == 0 ? text : err.text);
    return rc;
}

/* A region, as slots and the mount's memory are: as it is, and pinned. */
static int region(struct trial *t)
{
    struct ws_region *r = NULL;
    struct ws_error err = {0};
    int rc = ws_region_new(&r, TRIAL_BYTES, &err);
    if (rc < 0) {
        say(t, DOCTOR_NOTE, "regions", err.text);
        return 0;
    }
    rc = copies(t, "plain copies", "", ws_region_data(r), -1);
    if (rc == 0) {
        double start = cli_now();
        int pinned = gpu->pin(t->device, ws_region_data(r), TRIAL_BYTES, &err);
        double seconds = cli_now() - start;
        if (pinned == 0) {
            rc = copies(t, "pinned regions", "pinned", ws_region_data(r), seconds);
            gpu->unpin(t->device, ws_region_data(r));
        } else {
            bool lacks = pinned == -ENOMEM || pinned == -ENOTSUP || pinned == -EPERM;
            say(t, lacks ? DOCTOR_NOTE : DOCTOR_BROKEN, "pinned regions", err.text);
        }
    }
    ws_region_free(r);
    return rc;
}

static void pinned_memory(struct trial *t)
{
    struct ws_error err = {0};
    void *host = NULL;
    double start = cli_now();
    int rc = gpu->alloc_pinned(t->device, TRIAL_BYTES, &host, &err);
    double seconds = cli_now() - start;
    if (rc == 0)
        (void)copies(t, "pinned memory", "made", host, seconds);
    else
        say(t, rc == -ENOMEM ? DOCTOR_NOTE : DOCTOR_BROKEN, "pinned memory", err.text);
    gpu->release_pinned(t->device, host);
}

/* Whether the driver exports a handle of its memory. The handle is not opened. */
static void share(struct trial *t)
{
    unsigned char handle[WS_DEVICE_HANDLE_BYTES];
    struct ws_device_extent e;
    struct ws_error err = {0};
    int fd = -1;
    int rc = gpu->extent(t->memory, &e, &err);
    if (rc == 0)
        rc = e.by_fd ? gpu->share_fd(&e, &fd, &err) : gpu->share(&e, handle, &err);
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        say(t, DOCTOR_OK, "export",
            e.by_fd ? "its memory goes out by a descriptor" : "its memory goes out by a handle");
    else
        say(t, rc == -ENOTSUP ? DOCTOR_NOTE : DOCTOR_BROKEN, "export", err.text);
}

static void reach_others(struct trial *t, unsigned n)
{
    struct ws_error err;
    char text[256];
    for (unsigned peer = 0; peer < n; peer++) {
        if ((int)peer == t->device)
            continue;
        err = (struct ws_error){0};
        int rc = gpu->reaches(t->device, (int)peer, &err);
        snprintf(text, sizeof text, "reads the memory of device %u", peer);
        say(t,
            rc == 0        ? DOCTOR_OK
            : rc == -EXDEV ? DOCTOR_NOTE
                           : DOCTOR_BROKEN,
            "peer", rc == 0 ? text : err.text);
    }
}

static void try_device(struct doctor *d, int device, unsigned n)
{
    struct trial t = {.doctor = d, .device = device};
    struct ws_error err = {0};
    void *memory = NULL;
    if (describe(&t) < 0)
        return;
    int rc = gpu->queue_new(device, &t.queue, &err);
    if (rc == 0)
        rc = gpu->alloc(device, TRIAL_BYTES, &memory, &err);
    t.memory = memory;
    if (rc < 0) {
        say(&t, rc == -ENOMEM ? DOCTOR_NOTE : DOCTOR_BROKEN, "memory", err.text);
    } else if (region(&t) == 0) {
        kernels(&t);
        pinned_memory(&t);
        share(&t);
        reach_others(&t, n);
    }
    gpu->release(device, memory);
    if (t.queue)
        gpu->queue_free(t.queue);
}

/* --- what all have in common --- */

/* The kernel module's own words; nothing where there is none. */
static void module(struct doctor *d)
{
    char line[256];
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    if (!f)
        return;
    if (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        doctor_say(d, DOCTOR_OK, "kernel module", "%s", line);
    }
    fclose(f);
}

/* Handles say which process they are of by its number, so both ends must be of one namespace. The machine's
 * own have fixed numbers (linux/proc_ns.h). */
static void namespace(struct doctor *d, const char *kind, unsigned long machines_own)
{
    char path[32], ours[64] = "", first[64] = "", name[NAME_CHARS];
    unsigned long number = 0;
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    if (readlink(path, ours, sizeof ours - 1) <= 0)
        return;
    snprintf(path, sizeof path, "/proc/1/ns/%s", kind);
    bool other = readlink(path, first, sizeof first - 1) > 0 && strcmp(ours, first) != 0;
    const char *bracket = strchr(ours, '[');
    number = bracket ? strtoul(bracket + 1, NULL, 10) : 0;
    if (number == 0)
        return;
    snprintf(name, sizeof name, "%s namespace", kind);
    if (number == machines_own && !other)
        doctor_say(d, DOCTOR_OK, name, "the machine's own");
    else
        doctor_say(d, DOCTOR_NOTE, name,
                   "a container's (%s): memory is shared by handles only with processes of the same one",
                   ours);
}

/* Where there is a driver that cannot be used, something is broken. */
static bool has_driver(void)
{
    const char *text, *other = getenv("WSYNC_LIBCUDA");
    return cli_has_cuda(&text) && (access("/proc/driver/nvidia/version", F_OK) == 0 ||
                                   dlopen(other && *other ? other : "libcuda.so.1", RTLD_LAZY | RTLD_LOCAL));
}

void doctor_gpu(struct doctor *d)
{
    struct ws_error err = {0};
    char driver[WS_DEVICE_DRIVER_CHARS];
    doctor_build(d);
    module(d);
    int rc = gpu->available(&err);
    if (rc == 0) {
        gpu->driver(driver);
        doctor_say(d, DOCTOR_OK, "driver", "%s, %u devices", driver, gpu->count());
        for (unsigned i = 0; i < gpu->count(); i++)
            try_device(d, (int)i, gpu->count());
    } else if (rc == -ENODEV || !has_driver()) {
        doctor_say(d, DOCTOR_NOTE, "driver", "no GPU here: %s", err.text);
    } else {
        doctor_say(d, DOCTOR_BROKEN, "driver", "%s", err.text);
    }
    doctor_nccl(d);
    namespace(d, "pid", 0xEFFFFFFCUL);
    namespace(d, "ipc", 0xEFFFFFFFUL);
    doctor_ways(d);
}
