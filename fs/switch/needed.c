#include "fs/switch/needed.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_needed_check(struct ws_control *c, const struct ws_controller *ctl, struct ws_model *m,
                    struct ws_version *v, struct ws_error *err)
{
    const char *mine = ws_model_need_text(m);
    char some[WS_MAX_NAME + 1];
    struct ws_error why = {0};
    size_t n = 0;

    pthread_mutex_lock(&c->lock);
    char *had = ctl->needed ? strdup(ctl->needed) : NULL;
    const bool is_kept = ctl->needed;
    pthread_mutex_unlock(&c->lock);
    if (!mine || !is_kept || (had && strcmp(had, mine) == 0)) {
        free(had);
        return 0;
    }
    int rc = had ? ws_version_compare_need(v, had, &n, some, &why) : -ENOMEM;
    if (rc == 0 && n > 0)
        rc = ws_error_set(
            err, EPROTO,
            "%s/%" PRIu64 " leaves out %zu tensors that its engines were loaded with, as %.200s, no engine "
            "was told: mount with need=%.200s%s, or start the engines on what is needed now, and add "
            "force-layout",
            ctl->name, ws_version_number(v), n, some, had, had[0] ? "" : " left out");
    else if (rc < 0)
        rc = ws_error_set(err, EPROTO,
                          "whether %s/%" PRIu64
                          " has all tensors that its engines were loaded with (need=%.200s) cannot be "
                          "told, no engine was told; add force-layout to switch all the same: %.300s",
                          ctl->name, ws_version_number(v), had ? had : "", why.text);
    free(had);
    return rc;
}

void ws_needed_loaded(struct ws_control *c, struct ws_controller *ctl)
{
    pthread_mutex_lock(&c->lock);
    free(ctl->needed);
    ctl->needed = NULL;
    pthread_mutex_unlock(&c->lock);
}

char *ws_needed_line(const struct ws_controller *ctl, const struct ws_model *model)
{
    const char *needed = ctl->needed ? ctl->needed : model ? ws_model_need_text(model) : NULL;
    char *line = NULL;

    if (!ctl->engines || !needed || !needed[0] || asprintf(&line, WS_NEEDED_WORD "%s", needed) < 0)
        return NULL;
    return line;
}
