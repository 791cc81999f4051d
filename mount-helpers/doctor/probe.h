/* Probe: one check of the doctor's, in a process of its own, since what is checked may hang: a mount whose daemon stands still, an
 * account that a directory service does not tell, a driver. What it has said by the end of its time counts; then it is ended, and a
 * line says so. */
#ifndef WS_MOUNT_HELPERS_DOCTOR_PROBE_H
#define WS_MOUNT_HELPERS_DOCTOR_PROBE_H
#include "mount-helpers/doctor/doctor.h"

struct doctor_probe {
    const char *name; /* of the line that says that it took too long, or crashed */
    const char *what; /* "/wsync" */
    unsigned seconds; /* it may take */
    bool is_broken;   /* where it takes longer; else that is a note */
    void (*run)(struct doctor *d, void *arg);
    void *arg;
};

void doctor_probe(struct doctor *d, const struct doctor_probe *p);

#endif
