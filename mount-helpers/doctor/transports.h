/* What this build has for GPUs, NCCL, and which strategies would be used here. */
#ifndef WS_MOUNT_HELPERS_DOCTOR_TRANSPORTS_H
#define WS_MOUNT_HELPERS_DOCTOR_TRANSPORTS_H
#include "mount-helpers/doctor/doctor.h"

void doctor_build(struct doctor *d);
void doctor_nccl(struct doctor *d);
void doctor_ways(struct doctor *d);

#endif
