#include "mount-helpers/cli/bundle.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#define TAR_BLOCK 512
#define LEVEL     3

/* ustar's header of one file. */
struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100], magic[8], user[32],
        group[32], major[8], minor[8], prefix[155], rest[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "tar's headers have 512 bytes");

static int put(struct bundle *b, const void *bytes, size_t n)
{
    const size_t padded = (n + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    if (bundle_bytes_reserve(&b->tar, padded) < 0)
        return -ENOMEM;
    memset(b->tar.ptr + b->tar.len, 0, padded);
    if (n)
        memcpy(b->tar.ptr + b->tar.len, bytes, n);
    b->tar.len += padded;
    return 0;
}

int bundle_add(struct bundle *b, const char *name, const char *text)
{
    const size_t n = strlen(text);
    struct header h = {
        .mode = "0000600", .uid = "0000000", .gid = "0000000", .type = '0', .magic = "ustar\00000"};
    if (strlen(name) >= sizeof(h.name) || n > BUNDLE_BYTES || b->tar.len + n > BUNDLE_BYTES)
        return -E2BIG;
    strcpy(h.name, name);
    snprintf(h.size, sizeof(h.size), "%011zo", n);
    snprintf(h.mtime, sizeof(h.mtime), "%011llo", (unsigned long long)time(NULL));
    memset(h.sum, ' ', sizeof(h.sum));
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((const unsigned char *)&h)[i];
    snprintf(h.sum, sizeof(h.sum), "%06o", sum & 0777777);
    const int rc = put(b, &h, sizeof(h));
    return rc < 0 ? rc : put(b, text, n);
}

static int write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno != EINTR)
            return -errno;
        bytes += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

int bundle_check(const char *path, struct ws_error *err)
{
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return ws_error_set(err, EEXIST,
                            "cannot write %s: what is there is no regular file, and would be replaced; "
                            "--out names another place",
                            path);
    return 0;
}

int bundle_write(struct bundle *b, const char *path, struct ws_error *err)
{
    static const char end[2 * TAR_BLOCK];
    char part[PATH_MAX];
    if (bundle_check(path, err) < 0)
        return -EEXIST;
    if ((size_t)snprintf(part, sizeof(part), "%s.XXXXXX", path) >= sizeof(part))
        return ws_error_set(err, ENAMETOOLONG, "cannot write %.200s...: the name is too long", path);
    if (put(b, end, sizeof(end)) < 0)
        return ws_error_set(err, ENOMEM, "no memory for %s", path);
    const size_t most = ZSTD_compressBound(b->tar.len);
    char *packed = malloc(most);
    const size_t n = packed ? ZSTD_compress(packed, most, b->tar.ptr, b->tar.len, LEVEL) : 0;
    if (!packed || ZSTD_isError(n)) {
        free(packed);
        return ws_error_set(err, ENOMEM, "no memory to compress %s", path);
    }
    const int fd = mkostemp(part, O_CLOEXEC); /* 0600 */
    int rc = fd < 0 ? -errno : write_all(fd, packed, n);
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    if (fd >= 0)
        close(fd);
    if (rc == 0 && rename(part, path) != 0)
        rc = -errno;
    if (rc < 0 && fd >= 0)
        (void)unlink(part);
    free(packed);
    return rc < 0
               ? ws_error_set(err, -rc, "cannot write %s: %s; --out names another place", path, strerror(-rc))
               : 0;
}

void bundle_reset(struct bundle *b)
{
    bundle_bytes_reset(&b->tar);
}
