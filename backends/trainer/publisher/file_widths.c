#include "backends/trainer/publisher/file_widths.h"
#include <errno.h>
#include <stdlib.h>

int ws_file_widths_read(struct ws_element_widths **widths, unsigned char *const *data, const uint64_t *sizes,
                        size_t n_files, struct ws_error *err)
{
    for (size_t i = 0; i < n_files; i++) {
        struct ws_safetensors *st = NULL;
        uint64_t header;
        if (widths[i] || !data[i] || sizes[i] < WS_BLOCK_BYTES)
            continue;
        if (ws_safetensors_header_bytes(data[i], sizes[i], &header, NULL) < 0 ||
            ws_safetensors_parse(data[i], header, sizes[i], &st, NULL) < 0)
            st = NULL; /* bytes, then */
        widths[i] = ws_element_widths_new(st);
        ws_safetensors_free(st);
        if (!widths[i])
            return ws_error_set(err, ENOMEM, "no memory for the widths of a file's elements");
    }
    return 0;
}

void ws_file_widths_free(struct ws_element_widths **widths, size_t n_files)
{
    for (size_t i = 0; widths && i < n_files; i++)
        free(widths[i]);
    free(widths);
}
