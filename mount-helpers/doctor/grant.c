#include "mount-helpers/doctor/grant.h"
#include <stdlib.h>
#include <unistd.h>

/* The first line that holds counts: containers are in jobs, and pods' are of some container's kind, too. */
static const struct {
    const char *variable, *file; /* what is there of it; NULL: it has none */
    const char *grant;
} places[] = {
    {"KUBERNETES_SERVICE_HOST", "/var/run/secrets/kubernetes.io",
     "Kubernetes: a container with securityContext {privileged: true} and a hostPath volume of /dev/fuse, as "
     "in "
     "kubernetes/wsync-mount.yaml; or a driver mounts, and the container runs 'wsync mount --fuse-socket "
     "PATH'"},
    {NULL, "/run/.containerenv",
     "Podman: podman run --device /dev/fuse --cap-add SYS_ADMIN --security-opt label=disable"},
    {NULL, "/.dockerenv",
     "Docker: docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined"},
    {"APPTAINER_CONTAINER", NULL,
     "Apptainer: apptainer exec --fusemount 'container:wsync mount -f SOURCE /wsync', which gives the daemon "
     "/dev/fd/N; "
     "or --bind a mount of the node"},
    {"SINGULARITY_CONTAINER", NULL,
     "Singularity: singularity exec --fusemount 'container:wsync mount -f SOURCE /wsync', which gives the "
     "daemon /dev/fd/N; "
     "or --bind a mount of the node"},
    {"SLURM_JOB_ID", NULL,
     "Slurm: root mounts in the job's prolog, 'wsync mount -o group=GROUP SOURCE /wsync', and unmounts in "
     "its epilog; "
     "with pyxis srun --container-mounts=/wsync:/wsync"},
    {NULL, NULL,
     "root mounts, or another user with fusermount3 (package fuse3); root's daemon can give its privileges "
     "up: -o run-as=USER"},
};

const char *doctor_grant(void)
{
    size_t i = 0;
    while ((places[i].variable || places[i].file) && !(places[i].variable && getenv(places[i].variable)) &&
           !(places[i].file && access(places[i].file, F_OK) == 0))
        i++;
    return places[i].grant;
}
