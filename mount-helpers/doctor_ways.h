/* What this build has for GPUs, NCCL, and which strategies would be used here. */
#ifndef WS_MOUNT_HELPERS_DOCTOR_WAYS_H
#define WS_MOUNT_HELPERS_DOCTOR_WAYS_H
#include "mount-helpers/doctor.h"

void doctor_build(struct doctor *d);
void doctor_nccl(struct doctor *d);
void doctor_ways(struct doctor *d);

#endif
