/* File widths: of which widths a slot's files have elements, by the header that the agent wrote into each: as the agent
 * sees them when it compares two versions. */
#ifndef WS_TRAINER_PUBLISHER_FILE_WIDTHS_H
#define WS_TRAINER_PUBLISHER_FILE_WIDTHS_H
#include "transports/base/error.h"
#include "transports/format/element_widths.h"

/* Fills in, by file, those that are NULL and of files of a block at least. data: of a slot's files, NULL: not mapped. */
WS_MUST_USE int ws_file_widths_read(struct ws_element_widths **widths, unsigned char *const *data,
                                    const uint64_t *sizes, size_t n_files, struct ws_error *err);
void ws_file_widths_free(struct ws_element_widths **widths, size_t n_files); /* NULL is fine */

#endif
