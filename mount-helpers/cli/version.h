/* Version: what this build is and what it is built with. */
#ifndef WS_MOUNT_HELPERS_CLI_VERSION_H
#define WS_MOUNT_HELPERS_CLI_VERSION_H
#include <stdbool.h>

#define CLI_LIBFUSE_CHARS 64

void cli_print_version(void);
void cli_libfuse_text(char out[CLI_LIBFUSE_CHARS]); /* "3.17.4 (built with 3.17, passthrough)" */
/* Is it in this build, and with what: "CUDA 13.0"; else why it is not. */
bool cli_has_cuda(const char **text);
bool cli_has_nccl(const char **text);
bool cli_has_kernels(const char **text);

#endif
