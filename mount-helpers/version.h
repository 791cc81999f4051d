/* Version: what this build is and what it is built with. */
#ifndef WS_MOUNT_HELPERS_VERSION_H
#define WS_MOUNT_HELPERS_VERSION_H

void cli_print_version(void);

#endif
