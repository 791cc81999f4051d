#include "fs/switch/preflight.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>

#define ANSWER_MS 5000

struct preflight {
    struct ws_control *control;
    struct ws_engine **engines;
    struct ws_error *errors; /* code 0: it is well */
};

static void query(void *arg, size_t i)
{
    struct preflight *m = arg;
    struct ws_engine *e = m->engines[i];
    struct ws_engine_serving now;
    struct ws_engine_call call;
    if (e->ops->external)
        return;
    if (ws_engine_ready(e, m->control, &m->errors[i]) < 0)
        return;
    ws_engine_call_init(e, m->control, &call);
    ws_engine_call_limit(&call, ANSWER_MS);
    if (e->ops->serving(&call.target, &now, &m->errors[i]) == 0)
        m->errors[i].code = 0;
}

int ws_preflight(struct ws_control *c, struct ws_controller *ctl, struct ws_error *err)
{
    struct preflight m = {.control = c};
    size_t n = 0, lost = 0, first = 0;
    m.engines = ws_engine_get_all(c, ctl, true, &n);
    m.errors = calloc(n + 1, sizeof(*m.errors));
    int rc = m.engines && m.errors ? 0 : ws_error_set(err, ENOMEM, "no memory to query %zu engines", n);
    if (rc == 0)
        ws_workers_run_at_once(query, &m, n);
    for (size_t i = n; rc == 0 && i-- > 0;)
        if (m.errors[i].code) {
            lost++;
            first = i;
        }
    pthread_mutex_lock(&c->lock);
    bool enough = ws_controller_has_quorum(ctl, n, lost);
    pthread_mutex_unlock(&c->lock);
    if (rc == 0 && !enough)
        rc = ws_error_set(err, m.errors[first].code, "engine %s (%s) does not answer: %.700s",
                          m.engines[first]->name, m.engines[first]->url, m.errors[first].text);
    free(m.errors);
    if (m.engines)
        ws_engine_put_all(c, m.engines, n);
    return rc;
}
