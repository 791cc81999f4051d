/* Commands: what each command of a control file does, as one table. Their words are engines/grammar.c's; control.c
 * runs them, each on a thread of its own. */
#ifndef WS_FS_CONTROL_COMMANDS_H
#define WS_FS_CONTROL_COMMANDS_H
#include "fs/engines/controller.h"

#define WS_WRITER_CHARS 40

/* A command that was written and runs on a thread of its own. */
struct ws_command_request {
    struct ws_control *control;
    struct ws_controller *controller;
    struct ws_model *model; /* a reference; NULL at the root */
    struct ws_command command;
    char shown[WS_MAX_COMMAND + 1];
    size_t bytes; /* of it as it was written */
    bool any_file;
    char who[WS_WRITER_CHARS], from[WS_WRITER_CHARS]; /* the writer: "uid:0", "pid 7 uid 0" */
    const atomic_bool *cancel;
    void (*done)(void *arg, int result); /* NULL once called */
    void *arg;
};

/* Called without locks; may take as long as a switch. */
struct ws_command_action {
    int (*run)(struct ws_command_request *rq, struct ws_error *err);
    bool changes_settings;   /* they are written once it has succeeded */
    bool lengthens_settings; /* it is refused where they could not be written */
};
extern const struct ws_command_action ws_command_actions[WS_VERB_COUNT];

#endif
