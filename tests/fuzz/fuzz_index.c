/* Indexes of sharded checkpoints under libFuzzer. The input is the file. What is accepted must hold what its reader promises: every entry
 * by its file in order, and no tensor twice in one. Whether a file lies in the folder is looked up in the folder's list. */
#include "transports/format/folder_index.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void check_index(const struct ws_folder_index *index)
{
    for (size_t i = 0; i < index->n; i++) {
        const struct ws_folder_index_entry *e = &index->by_file[i], *before = i ? e - 1 : NULL;
        const size_t n = strlen(e->file);
        require(n >= strlen(".safetensors"));
        require(strcmp(e->file + n - strlen(".safetensors"), ".safetensors") == 0);
        const int order = before ? strcmp(before->file, e->file) : -1;
        require(order < 0 || (order == 0 && strcmp(before->tensor, e->tensor) < 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_folder_index *index = NULL;
    struct ws_error err = {0};
    const int fd = memfd_create("index", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
    if (ws_folder_index_read(fd, &index, &err) == 0)
        check_index(index);
    else
        require(err.text[0] != 0);
    ws_folder_index_free(index);
    close(fd);
    return 0;
}
