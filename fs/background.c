#include "fs/background.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* log -1: what it prints is discarded. */
static void leave_terminal(int log)
{
    int in = open("/dev/null", O_RDWR), out = log;
    (void)setsid();
    (void)dup2(in, STDIN_FILENO);
    (void)dup2(out >= 0 ? out : in, STDOUT_FILENO);
    (void)dup2(out >= 0 ? out : in, STDERR_FILENO);
    if (chdir("/") != 0)
        ws_log(WS_LOG_DEBUG, "mount", "stays in its folder");
}

/* The child tells how it went: 0, or an errno and a sentence. */
int ws_background_run(const struct ws_background *b, struct ws_error *err)
{
    int pipes[2], code = 0, log = -1;
    if (b->log_file && (log = open(b->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640)) < 0)
        return ws_error_set(err, errno, "cannot write the log %s: %s; name another with log=", b->log_file,
                            strerror(errno));
    if (pipe2(pipes, O_CLOEXEC) != 0)
        return ws_error_set(err, errno, "cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        return ws_error_set(err, errno, "cannot fork: %s", strerror(errno));
    if (pid == 0) {
        struct ws_error why = {0};
        close(pipes[0]);
        leave_terminal(log);
        int rc = b->run(b->arg, pipes[1], &why);
        if (rc < 0) {
            ws_log(WS_LOG_ERROR, "mount", "%s", why.text);
            if (write(pipes[1], &rc, sizeof(rc)) < 0 || write(pipes[1], why.text, strlen(why.text)) < 0)
                _exit(1);
        }
        _exit(rc < 0);
    }
    close(pipes[1]);
    if (log >= 0)
        close(log);
    ssize_t n = read(pipes[0], &code, sizeof(code));
    if (n == (ssize_t)sizeof(code) && code == 0) {
        close(pipes[0]);
        return 0;
    }
    char text[WS_ERROR_TEXT] = "the daemon died at its start; 'wsync mount -f' shows more";
    ssize_t k = n > 0 ? read(pipes[0], text, sizeof(text) - 1) : 0;
    if (k > 0)
        text[k] = 0;
    close(pipes[0]);
    (void)waitpid(pid, NULL, 0);
    return ws_error_set(err, n > 0 && code < 0 ? -code : EIO, "%s", text);
}
