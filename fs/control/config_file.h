/* Config file: what the file of -o config= says, read and checked, without any effect (config.h has the format). */
#ifndef WS_FS_CONTROL_CONFIG_FILE_H
#define WS_FS_CONTROL_CONFIG_FILE_H
#include "fs/engines/controller.h"
#include "fs/store/transport_prefs.h"
#include "transports/base/vector.h"

struct ws_config_line {
    char *text; /* the command as it is kept (ws_words_join) */
    char *word; /* its name: of the engine, the version, or the source */
    char *file;
    unsigned line;
};
WS_VECTOR(ws_config_lines, struct ws_config_line);

struct ws_config_model {
    struct ws_config_model *next;
    char *name;
    bool has_policy, has_commit, has_strategy;
    struct ws_controller wanted; /* of it only policy and commit */
    struct ws_transport_prefs strategy;
    char *need; /* as need= has it, without the model; NULL: the file does not say */
    struct ws_config_lines engines, pins, sources;
};
/* path: a file, or a folder. -EINVAL, or why it cannot be read; *out is NULL then. */
WS_MUST_USE int ws_config_file_read(const char *path, struct ws_config_model **out, struct ws_error *err);
void ws_config_file_free(struct ws_config_model *all); /* NULL is fine */
/* The same of a text in memory, without effect on what `all` has where it fails; file: its name in errors. The text is
 * changed. */
WS_MUST_USE int ws_config_text_read(const char *file, char *text, size_t n, struct ws_config_model **out,
                                    struct ws_error *err);
/* Adds a line of a model, or of its sources, as the settings keep it. What is there already, or is not understood
 * here, is left out. */
void ws_config_read_declared(struct ws_config_model **all, const char *model, const char *line);
bool ws_config_names_version(const struct ws_config_line *pin, const struct ws_version_id *id);
/* Where something is released, the word follow means follow-released, which it is written out as. */
bool ws_config_has_policy(const struct ws_controller *ctl, const struct ws_controller *wanted);
/* NULL: it has none of that name. */
const struct ws_config_line *ws_config_find(const struct ws_config_lines *all, const char *word);

#endif
