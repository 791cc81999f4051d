#include "fs/control/config_file.h"
#include "fs/engines/engines.h"
#include "fs/store/needs.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Where the reading stands. */
struct reader {
    struct ws_config_model *all, *model; /* the one that lines are of; NULL: none yet */
    const char *file;
    unsigned line;
    bool of_settings; /* it was checked when it was set */
    struct ws_error *err;
};

static int refuse(const struct reader *r, const char *format, const char *word, const char *remedy)
{
    char text[WS_ERROR_TEXT];
    snprintf(text, sizeof(text), format, word);
    return ws_error_set(r->err, EINVAL, "%s:%u: %.700s: %.200s", r->file, r->line, text, remedy);
}

/* The error of a command is kept, with its place before it. */
static int refuse_command(const struct reader *r)
{
    char text[WS_ERROR_TEXT];
    snprintf(text, sizeof(text), "%s", r->err->text);
    return ws_error_set(r->err, EINVAL, "%s:%u: %.900s", r->file, r->line, text);
}

static struct ws_config_model *find_model(struct reader *r, const char *name)
{
    struct ws_config_model **at = &r->all;
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    if (!*at && (*at = calloc(1, sizeof(**at))) && !((*at)->name = strdup(name))) {
        free(*at);
        *at = NULL;
    }
    return *at;
}

const struct ws_config_line *ws_config_find(const struct ws_config_lines *all, const char *word)
{
    for (size_t i = 0; i < all->len; i++)
        if (strcmp(all->ptr[i].word, word) == 0)
            return &all->ptr[i];
    return NULL;
}

static void free_line(struct ws_config_line *l)
{
    free(l->text);
    free(l->word);
    free(l->file);
}

static int append(const struct reader *r, struct ws_config_lines *to, const struct ws_words *words,
                  const char *word)
{
    char text[WS_MAX_COMMAND + 1];
    if (ws_config_find(to, word))
        return refuse(r, "'%.200s' is there already", word, "remove one of the lines");
    if (ws_words_join(words, text, r->err) < 0)
        return refuse_command(r);
    struct ws_config_line l = {
        .text = strdup(text), .word = strdup(word), .file = strdup(r->file), .line = r->line};
    if (l.text && l.word && l.file && ws_config_lines_append(to, l) == 0)
        return 0;
    free_line(&l);
    return ws_error_set(r->err, ENOMEM, "no memory to read %s", r->file);
}

/* --- one line --- */

static int read_policy(struct reader *r, const struct ws_command *q)
{
    const struct ws_policy_options o = {q->options[WS_OPTION_EVERY], q->options[WS_OPTION_MIN_INTERVAL],
                                        q->options[WS_OPTION_UNTIL]};
    if (ws_controller_set_policy(NULL, &r->model->wanted, q->args[0], &o, r->err) < 0)
        return refuse_command(r);
    r->model->has_policy = true;
    return 0;
}

static int read_setting(struct reader *r, const struct ws_command *q)
{
    struct ws_config_model *m = r->model;
    switch (q->verb) {
    case WS_VERB_POLICY:
        return read_policy(r, q);
    case WS_VERB_COMMIT:
        m->has_commit = true;
        return ws_controller_set_commit(NULL, &m->wanted, q->args[0], r->err) < 0 ? refuse_command(r) : 0;
    case WS_VERB_STRATEGY:
        m->has_strategy = true;
        return ws_transport_prefs_parse(q->args[0], &m->strategy, r->err) < 0 ? refuse_command(r) : 0;
    case WS_VERB_PIN:
        return append(r, &m->pins, &q->words, q->args[0]);
    case WS_VERB_ENGINE_ADD:
        if (!r->of_settings && ws_engine_check(q, r->err) < 0)
            return refuse_command(r);
        return append(r, &m->engines, &q->words, q->args[0]);
    default:
        return refuse(
            r, "'%.100s' is no setting", q->words.word[0],
            "a file has policy, commit, strategy, need, engine add and pin of a model, and add MODEL SOURCE");
    }
}

static int read_add(struct reader *r, const struct ws_command *q)
{
    struct ws_config_model *m, *before = r->model;
    if (!ws_name_is_model(q->args[0]))
        return refuse(r, "'%.100s' cannot be a model", q->args[0], WS_MODEL_NAME_RULE);
    if (!(m = find_model(r, q->args[0])))
        return ws_error_set(r->err, ENOMEM, "no memory to read %s", r->file);
    int rc = append(r, &m->sources, &q->words, q->args[1]);
    if (rc == 0 && q->options[WS_OPTION_POLICY]) {
        m->has_policy = true;
        rc = ws_controller_set_policy(NULL, &m->wanted, q->options[WS_OPTION_POLICY],
                                      &(struct ws_policy_options){0}, r->err);
        rc = rc < 0 ? refuse_command(r) : 0;
    }
    r->model = before;
    return rc;
}

static int read_model(struct reader *r, const char *line)
{
    struct ws_words w = {0};
    if (ws_words_parse(line, strlen(line), &w, r->err) < 0)
        return refuse_command(r);
    if (w.n != 2 || !ws_name_is_model(w.word[1]))
        return refuse(r, "'%.100s' names no model", line, "write: model NAME");
    r->model = find_model(r, w.word[1]);
    return r->model ? 0 : ws_error_set(r->err, ENOMEM, "no memory to read %s", r->file);
}

/* What is needed of the model is no command: it holds from the start of a mount to its end. */
static int read_need(struct reader *r, const char *line)
{
    struct ws_words w = {0};
    char *text = NULL;
    if (ws_words_parse(line, strlen(line), &w, r->err) < 0)
        return refuse_command(r);
    if (w.n != 2)
        return refuse(r, "'%.100s' says nothing that is needed", line,
                      "write: need PATTERN;... or need learn, as need= of a mount has it");
    if (r->model->need)
        return refuse(r, "what is needed of %.200s is there already", r->model->name,
                      "write all patterns in one line");
    int rc = asprintf(&text, "%s=%s", r->model->name, w.word[1]) < 0 ? -ENOMEM : 0;
    if (rc == 0)
        rc = ws_needs_check(text, r->err) < 0 ? refuse_command(r) : 0;
    if (rc == 0 && !(r->model->need = strdup(w.word[1])))
        rc = -ENOMEM;
    free(text);
    return rc == -ENOMEM ? ws_error_set(r->err, ENOMEM, "no memory to read %s", r->file) : rc;
}

static bool begins_with(const char *line, const char *word)
{
    const size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && (line[n] == ' ' || line[n] == '\t' || !line[n]);
}

static int read_line(struct reader *r, const char *line)
{
    const bool adds = begins_with(line, "add");
    if (begins_with(line, "model"))
        return read_model(r, line);
    if (!adds && !r->model)
        return refuse(r, "'%.200s' is of no model", line, "write the line `model NAME` before it");
    if (begins_with(line, "need"))
        return read_need(r, line);
    struct ws_command *q = calloc(1, sizeof(*q));
    if (!q)
        return ws_error_set(r->err, ENOMEM, "no memory to read %s", r->file);
    int rc = ws_command_parse(adds ? WS_SCOPE_ROOT : WS_SCOPE_MODEL, line, strlen(line), q, r->err);
    rc = rc < 0 ? refuse_command(r) : adds ? read_add(r, q) : read_setting(r, q);
    free(q);
    return rc;
}

/* --- files --- */

static int read_text(struct reader *r, char *text, size_t n)
{
    int rc = 0;
    r->line = 0;
    r->model = NULL;
    if (strlen(text) != n)
        return ws_error_set(r->err, EINVAL, "%s holds a zero byte: it is no text", r->file);
    for (char *line = text, *end; rc == 0 && line; line = end) {
        end = strchr(line, '\n');
        if (end)
            *end++ = 0;
        r->line++;
        line += strspn(line, " \t\r");
        for (size_t k = strlen(line); k > 0 && strchr(" \t\r", line[k - 1]); k--)
            line[k - 1] = 0;
        if (*line && *line != '#')
            rc = read_line(r, line);
    }
    return rc;
}

int ws_config_text_read(const char *file, char *text, size_t n, struct ws_config_model **out,
                        struct ws_error *err)
{
    struct reader r = {.file = file, .err = err};
    const int rc = read_text(&r, text, n);
    *out = rc < 0 ? NULL : r.all;
    if (rc < 0)
        ws_config_file_free(r.all);
    return rc;
}

void ws_config_read_declared(struct ws_config_model **all, const char *model, const char *line)
{
    struct ws_error err;
    struct reader r = {.all = *all, .file = "the settings", .of_settings = true, .err = &err};
    r.model = find_model(&r, model);
    if (r.model && read_line(&r, line) < 0)
        ws_log(WS_LOG_DEBUG, "control", "left out of what the config had set: %s", err.text);
    *all = r.all;
}

bool ws_config_names_version(const struct ws_config_line *pin, const struct ws_version_id *id)
{
    char text[WS_VERSION_ID_TEXT], number[24];
    ws_version_id_text(id, text);
    snprintf(number, sizeof(number), "%" PRIu64, id->version);
    return strcmp(pin->word, text) == 0 || strcmp(pin->word, number) == 0;
}

bool ws_config_has_policy(const struct ws_controller *ctl, const struct ws_controller *wanted)
{
    return (ctl->policy == wanted->policy && ctl->follow_every == wanted->follow_every &&
            ctl->follow_interval_s == wanted->follow_interval_s) ||
           (wanted->policy == WS_POLICY_FOLLOW_UNTIL_RELEASE && ctl->policy == WS_POLICY_FOLLOW_RELEASED);
}

static int read_file(struct reader *r, const char *path)
{
    char *text;
    size_t n;
    r->file = path;
    int rc = ws_state_file_read(path, &text, &n, r->err);
    if (rc == 0 && !text)
        return ws_error_set(r->err, ENOENT, "there is no %s: name another file with config=", path);
    if (rc == 0)
        rc = read_text(r, text, n);
    free(text);
    return rc;
}

static int read_folder(struct reader *r, const char *path)
{
    char pattern[PATH_MAX];
    glob_t found = {0};
    snprintf(pattern, sizeof(pattern), "%s/*.conf", path);
    int rc = glob(pattern, GLOB_ERR, NULL, &found); /* sorted */
    const int code = rc == GLOB_NOSPACE ? ENOMEM : errno ? errno : EIO;
    rc = rc == 0 || rc == GLOB_NOMATCH
             ? 0
             : ws_error_set(r->err, code, "cannot read the folder %s: %s", path, strerror(code));
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
        rc = read_file(r, found.gl_pathv[i]);
    globfree(&found);
    return rc;
}

int ws_config_file_read(const char *path, struct ws_config_model **out, struct ws_error *err)
{
    struct reader r = {.err = err};
    struct stat st;
    const size_t n = strlen(path);
    *out = NULL;
    if (stat(path, &st) != 0 && errno == ENOENT && n > 0 && path[n - 1] == '/')
        return 0; /* a folder that is still to be made */
    const int rc = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? read_folder(&r, path) : read_file(&r, path);
    if (rc < 0)
        ws_config_file_free(r.all);
    else
        *out = r.all;
    return rc;
}

static void free_lines(struct ws_config_lines *all)
{
    for (size_t i = 0; i < all->len; i++)
        free_line(&all->ptr[i]);
    ws_config_lines_reset(all);
}

void ws_config_file_free(struct ws_config_model *all)
{
    while (all) {
        struct ws_config_model *m = all;
        all = m->next;
        free_lines(&m->engines);
        free_lines(&m->pins);
        free_lines(&m->sources);
        free(m->need);
        free(m->name);
        free(m);
    }
}
