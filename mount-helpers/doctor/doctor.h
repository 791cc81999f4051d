/* Doctor: what the checks of `wsync doctor` find, a line each, as text or JSON. */
#ifndef WS_MOUNT_HELPERS_DOCTOR_DOCTOR_H
#define WS_MOUNT_HELPERS_DOCTOR_DOCTOR_H
#include "mount-helpers/cli/cli.h"
#include <jansson.h>
#include <stdint.h>

enum doctor_state {
    DOCTOR_OK,
    DOCTOR_NOTE,   /* not there, or less than there could be: no failure */
    DOCTOR_BROKEN, /* there, and does not work */
};

struct doctor {
    json_t *rows; /* NULL: text */
    unsigned n_broken;
    uint64_t end_ms; /* of all of it */
    /* In a probe's process (probe.h): where a line goes, of JSON; NULL: it is printed. */
    void (*tell)(struct doctor *d, const char *line);
    int out;
};

__attribute__((format(printf, 4, 5))) void doctor_say(struct doctor *d, enum doctor_state state,
                                                      const char *name, const char *format, ...);

/* doctor_machine.c, doctor_access.c, doctor_adapters.c, doctor_gpu.c, doctor_ucx.c, doctor_fleet.c */
void doctor_machine(struct doctor *d, const struct cli_args *args);
void doctor_fleet(struct doctor *d, const struct cli_args *args);
void doctor_access(struct doctor *d, const struct cli_args *args);
void doctor_adapters(struct doctor *d, const char *mount);
void doctor_gpu(struct doctor *d);
void doctor_ucx(struct doctor *d);

#endif
