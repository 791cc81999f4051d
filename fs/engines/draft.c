#include "fs/engines/draft.h"
#include "transports/base/text.h"
#include <string.h>

void ws_draft_loaded(struct ws_draft *d, const struct ws_version_id *id, const char *process)
{
    *d = (struct ws_draft){.id = *id};
    snprintf(d->process, sizeof(d->process), "%s", process);
}

void ws_draft_forget(struct ws_draft *d)
{
    *d = (struct ws_draft){0};
}

void ws_draft_seen(struct ws_draft *d, const char *process, bool restarted, bool is_current)
{
    const bool says = d->process[0] && process[0];
    const bool is_same = says ? strcmp(d->process, process) == 0 : d->is_kept ? is_current : !restarted;
    d->is_kept = false;
    if (!is_same)
        ws_draft_forget(d);
}

const char *ws_draft_text(const struct ws_draft *d, char out[WS_VERSION_ID_TEXT])
{
    if (!d->id.lineage[0])
        return "unknown";
    ws_version_id_text(&d->id, out);
    return out;
}

void ws_draft_print(const struct ws_draft *d, const char *engine, FILE *f)
{
    if (d->id.lineage[0])
        fprintf(f, WS_DRAFT_WORD "%s %" PRIu64 " %s%s%s\n", engine, d->id.version, d->id.lineage,
                d->process[0] ? " " : "", d->process);
}

bool ws_draft_read(struct ws_draft *d, const char *text)
{
    uint64_t number;
    if (ws_text_digits(&text, &number) || *text++ != ' ')
        return false;
    const size_t n = strcspn(text, " "), rest = strlen(text + n);
    if (n == 0 || n > WS_LINEAGE_CHARS || rest == 1 || rest > 1 + WS_ENGINE_PROCESS_CHARS)
        return false;
    *d = (struct ws_draft){.id.version = number, .is_kept = true};
    memcpy(d->id.lineage, text, n);
    snprintf(d->process, sizeof(d->process), "%s", rest > 0 ? text + n + 1 : "");
    return true;
}
