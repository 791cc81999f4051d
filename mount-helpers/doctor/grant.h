/* Grant: how a mount gets /dev/fuse and CAP_SYS_ADMIN where this process runs. */
#ifndef WS_MOUNT_HELPERS_DOCTOR_GRANT_H
#define WS_MOUNT_HELPERS_DOCTOR_GRANT_H

/* A sentence for the first of these that this process is in: Kubernetes, Podman, Docker, Apptainer, a Slurm job, else
 * a plain host. Static text. */
const char *doctor_grant(void);

#endif
