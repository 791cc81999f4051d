/* Commit rule: when a checkpoint folder that a framework writes is whole, though the framework says so to nobody. */
#ifndef WS_TRANSPORTS_FORMAT_COMMIT_RULE_H
#define WS_TRANSPORTS_FORMAT_COMMIT_RULE_H
#include "transports/base/error.h"
#include "transports/format/folder.h"

/* Several nodes may write one checkpoint, each its files of it and each into a folder of its own; the first node
 * writes what comes last, too, when all have written. */
enum ws_commit_part {
    WS_COMMIT_WHOLE,
    WS_COMMIT_FIRST, /* whole: its files are, and its marker or index is there, whatever files that names */
    WS_COMMIT_OTHER, /* whole: its files are, though its writer may go on: who publishes it starts again then */
};

/* Reads the folder at path where it is whole: no temporary name is left in it (tmp*, .tmp*, *.tmp: what safetensors,
 * transformers and frameworks write before they rename), what is there is a checkpoint (folder.h), and its last file is
 * there. That is `marker`; where a framework writes none (NULL): the index, model.safetensors, or both files of an
 * adapter. An index may come before the files that it names (slime's does), and the folder is whole with the last.
 *
 * -EAGAIN: it is not whole, or changes; err says what is missing. So does a folder that will never be: the two cannot be
 * told apart. -EINVAL: no marker can be called so; or what the system says. A file that is open for writing
 * under its final name is seen only by its length, and one that was given its length first not at all: who knows of
 * open files asks when there is none. */
WS_MUST_USE int ws_commit_rule_read(const char *path, const char *marker, enum ws_commit_part part,
                                    struct ws_folder **out, struct ws_error *err);

#endif
