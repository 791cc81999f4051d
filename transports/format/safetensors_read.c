/* The header of a safetensors file on a disk. Only the header is read, at once: checkpoints lie on
 * network file systems, where each request costs. */
#include "transports/base/file.h"
#include "transports/format/safetensors.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_head(int fd, void *p, size_t len, struct ws_error *err)
{
    const ssize_t n = ws_file_read(fd, p, len, 0);
    if (n < 0)
        return ws_error_set(err, (int)-n, "cannot read the header: %s", strerror((int)-n));
    return n == (ssize_t)len ? 0 : ws_error_set(err, EBADMSG, "the file became shorter while it was read");
}

int ws_safetensors_read_fd(int fd, struct ws_safetensors **out, struct ws_error *err)
{
    unsigned char length[8] = {0};
    uint64_t header_bytes = 0, file_bytes;
    struct stat stat;
    char *header;
    int rc;

    if (fstat(fd, &stat) < 0)
        return ws_error_set(err, errno, "cannot stat it: %m");
    if (!S_ISREG(stat.st_mode))
        return ws_error_set(err, EINVAL, "this is no regular file");
    file_bytes = (uint64_t)stat.st_size;
    if (file_bytes > WS_MAX_FILE_BYTES)
        return ws_error_set(err, E2BIG, "the file has %lu bytes, more than the limit of %lu", file_bytes,
                            WS_MAX_FILE_BYTES);
    rc = read_head(fd, length, file_bytes < sizeof(length) ? file_bytes : sizeof(length), err);
    if (rc == 0)
        rc = ws_safetensors_header_bytes(length, file_bytes, &header_bytes, err);
    if (rc < 0)
        return rc;
    assert(header_bytes > sizeof(length));
    header = malloc(header_bytes);
    if (!header)
        return ws_error_set(err, ENOMEM, "out of memory for its header");
    rc = read_head(fd, header, header_bytes, err);
    if (rc == 0)
        rc = ws_safetensors_parse(header, header_bytes, file_bytes, out, err);
    free(header);
    return rc;
}

int ws_safetensors_read(const char *path, struct ws_safetensors **out, struct ws_error *err)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* a FIFO would block */
    int rc;

    if (fd < 0) {
        rc = -errno;
        ws_error_set(err, -rc, "cannot open %s: %m", path);
        return rc;
    }
    rc = ws_safetensors_read_fd(fd, out, err);
    if (rc < 0)
        ws_error_prefix(err, "%s", path);
    close(fd);
    return rc;
}
