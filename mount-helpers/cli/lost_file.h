/* Lost file: a mapped file that became shorter, or whose mount failed, raises SIGBUS where it is read. A command that
 * maps files then ends with a sentence instead of a core. */
#ifndef WS_MOUNT_HELPERS_CLI_LOST_FILE_H
#define WS_MOUNT_HELPERS_CLI_LOST_FILE_H

/* From now on a SIGBUS prints "wsync COMMAND: sentence" and exits with CLI_FAILED. Before threads are started. */
void cli_lost_file_says(const char *sentence);

#endif
