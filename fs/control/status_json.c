#include "fs/control/status_json.h"
#include "fs/engines/controller.h"
#include "transports/base/json_text.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum type { TEXT, NAME, INTEGER, NUMBER, SECONDS, YES_NO, LIST };

struct field {
    const char *key; /* in the file; NULL ends a table */
    enum type type;  /* NAME: "none" and "-" are null; SECONDS: null where it is not said */
    const char *as;  /* in JSON; NULL: the same */
};

static json_t *value_of(enum type type, const char *text)
{
    switch (type) {
    case NAME:
        return ws_json_text(text && strcmp(text, "none") && strcmp(text, "-") ? text : NULL);
    case INTEGER:
        return json_integer(text ? strtoll(text, NULL, 10) : 0);
    case NUMBER:
        return json_real(text ? strtod(text, NULL) : 0);
    case SECONDS:
        return text ? json_real(strtod(text, NULL)) : json_null();
    case YES_NO:
        return json_boolean(text && !strcmp(text, "yes"));
    case LIST: {
        json_t *list = json_array();
        char *copy = strdup(text ? text : ""), *save = NULL;
        for (char *one = copy ? strtok_r(copy, ", ", &save) : NULL; one; one = strtok_r(NULL, ", ", &save))
            json_array_append_new(list, ws_json_text(one));
        free(copy);
        return list;
    }
    default:
        return ws_json_text(text);
    }
}

static void put(json_t *object, const struct field *fields, const char *key, const char *text)
{
    for (; fields->key; fields++)
        if (!strcmp(fields->key, key)) {
            json_object_set_new(object, fields->as ? fields->as : key, value_of(fields->type, text));
            return;
        }
    if (key[0])
        json_object_set_new(object, key, ws_json_text(text)); /* a newer mount's */
}

static json_t *object_of(const struct field *fields)
{
    json_t *object = json_object();
    for (; fields->key; fields++)
        json_object_set_new(object, fields->as ? fields->as : fields->key, value_of(fields->type, NULL));
    return object;
}

/* The next word of a line, cut off in place: up to a blank outside quotes. NULL at the end. */
static char *next_word(char **at)
{
    char *word = *at + strspn(*at, " ");
    bool quoted = false;
    char *p = word;
    for (; *p && (quoted || *p != ' '); p++)
        quoted ^= *p == '"';
    *at = *p ? p + 1 : p;
    *p = 0;
    return *word ? word : NULL;
}

/* "A B key=text key=\"two words\" flag": the first words by their place, then pairs, then flags. */
static json_t *row_of(char *line, const struct field *places, const struct field *pairs,
                      const char *const flags[])
{
    json_t *row = object_of(places), *rest = object_of(pairs);
    for (const char *const *flag = flags; flag && *flag; flag++)
        json_object_set_new(rest, *flag, json_false());
    for (const struct field *place = places; place->key; place++) {
        const char *word = next_word(&line);
        put(row, places, place->key, word);
    }
    for (char *word; (word = next_word(&line));) {
        char *equals = strchr(word, '=');
        if (!equals) {
            json_object_set_new(rest, word, json_true());
            continue;
        }
        *equals++ = 0;
        size_t n = strlen(equals);
        if (n > 1 && equals[0] == '"' && equals[n - 1] == '"') {
            equals[n - 1] = 0;
            equals++;
        }
        put(rest, pairs, word, equals);
    }
    json_object_update(row, rest);
    json_decref(rest);
    return row;
}

/* --- the mount --- */

static const struct field mount_fields[] = {
    {"mountpoint", TEXT, NULL},         {"reads", TEXT, NULL},
    {"cache_bytes", INTEGER, NULL},     {"used_bytes", INTEGER, NULL},
    {"waiting_bytes", INTEGER, NULL},   {"moved_bytes", INTEGER, NULL},
    {"pulls", INTEGER, NULL},           {"pulls_failed", INTEGER, NULL},
    {"retries", INTEGER, NULL},         {"bad_blocks", INTEGER, NULL},
    {"on_demand_bytes", INTEGER, NULL}, {"config", TEXT, NULL},
    {"settings", TEXT, NULL},           {"config_error", TEXT, NULL},
    {"link_bytes_s", INTEGER, NULL},    {0},
};
static const struct field source_places[] = {{"up", TEXT, NULL}, {0}};
static const struct field source_pairs[] = {
    {"transport", TEXT, NULL}, {"contact", NUMBER, NULL}, {"rtt", SECONDS, NULL}, {"error", TEXT, NULL}, {0}};

/* "URL up|down transport=...": the URL may have blanks, being a folder's name. */
static json_t *source_of(char *text)
{
    char *up = strstr(text, " up transport="), *down = strstr(text, " down transport=");
    char *behind = up && (!down || up < down) ? up : down ? down : text + strcspn(text, " ");
    json_t *row = json_object();
    if (*behind)
        *behind++ = 0;
    json_object_set_new(row, "url", ws_json_text(text));
    json_t *rest = row_of(behind, source_places, source_pairs, NULL);
    json_object_update(row, rest);
    json_object_set_new(row, "up", json_boolean(up && behind == up + 1));
    json_decref(rest);
    return row;
}

/* Calls each with the key and the rest of every line of a copy of the text. */
static void each_line(const char *text, void (*each)(json_t *object, char *key, char *rest), json_t *object)
{
    char *copy = strdup(text), *save = NULL;
    for (char *line = copy ? strtok_r(copy, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        size_t n = strcspn(line, " ");
        char *rest = line + n + (line[n] == ' ');
        line[n] = 0;
        each(object, line, rest);
    }
    free(copy);
}

static const struct field error_fields[] = {
    {"time", TEXT, NULL}, {"command", TEXT, NULL}, {"errno", TEXT, NULL}, {"message", TEXT, NULL}, {0}};

static void error_line(json_t *error, char *key, char *rest)
{
    put(error, error_fields, key, rest);
}

/* What a file last_error says; empty: null. */
static json_t *error_of(const char *text)
{
    if (!*text)
        return json_null();
    json_t *o = object_of(error_fields);
    each_line(text, error_line, o);
    return o;
}

static void mount_line(json_t *mount, char *key, char *rest)
{
    if (!strcmp(key, "source"))
        json_array_append_new(json_object_get(mount, "sources"), source_of(rest));
    else if (strcmp(key, "model")) /* they come as objects */
        put(mount, mount_fields, key, rest);
}

json_t *ws_status_json_mount(const char *status, const char *last_error)
{
    json_t *mount = object_of(mount_fields);
    json_object_set_new(mount, "last_error", error_of(last_error));
    json_object_set_new(mount, "sources", json_array());
    each_line(status, mount_line, mount);
    return mount;
}

/* --- a model --- */

static const struct field model_fields[] = {
    {"current", NAME, NULL},
    {"latest", NAME, NULL},
    {"previous", NAME, NULL},
    {"commit", TEXT, NULL},
    {"strategy", LIST, NULL},
    {"policy", TEXT, NULL},
    {"switching", YES_NO, NULL},
    {"switches", INTEGER, NULL},
    {"switches_failed", INTEGER, NULL},
    {"lacking", TEXT, NULL},
    {"quarantined", YES_NO, NULL},
    {"config_differs", TEXT, NULL},
    {"learned", TEXT, NULL},
    {0},
};
static const struct field version_places[] = {{"name", TEXT, NULL}, {"state", TEXT, NULL}, {0}};
static const struct field version_pairs[] = {
    {"bytes", INTEGER, NULL},
    {"have", INTEGER, NULL},
    {"moved", INTEGER, NULL},
    {"how", TEXT, NULL},
    {"strategy", NAME, NULL},
    {"why_not", TEXT, NULL},
    {"seconds", NUMBER, NULL},
    {"run", TEXT, NULL},
    {"sources", INTEGER, NULL},
    {"bad-blocks", INTEGER, "bad_blocks"},
    {"needed", INTEGER, NULL},
    {"error", TEXT, NULL},
    {0},
};
static const struct field history_places[] = {{"name", TEXT, NULL}, {"state", TEXT, NULL}, {0}};
static const struct field history_pairs[] = {
    {"at", TEXT, NULL},        {"run", TEXT, NULL},       {"bytes", INTEGER, NULL},
    {"moved", INTEGER, NULL},  {"seconds", NUMBER, NULL}, {"pulls", INTEGER, NULL},
    {"strategy", NAME, NULL},  {"first", SECONDS, NULL},  {"stalls", INTEGER, NULL},
    {"stalled", NUMBER, NULL}, {"loaded", SECONDS, NULL}, {"how", TEXT, NULL},
    {"why_not", TEXT, NULL},   {"error", TEXT, NULL},     {0},
};
static const char *const version_flags[] = {"pinned", "deleted", "gone-at-source", NULL};
static const struct field engine_places[] = {{"name", TEXT, NULL},    {"state", TEXT, NULL},
                                             {"serving", TEXT, NULL}, {"kind", TEXT, NULL},
                                             {"url", NAME, NULL},     {0}};
static const struct field engine_pairs[] = {{"pause", NUMBER, NULL},  {"pauses", INTEGER, NULL},
                                            {"paused", NUMBER, NULL}, {"draft", TEXT, NULL},
                                            {"error", TEXT, NULL},    {0}};

static json_t *version_of(char *text)
{
    json_t *row = row_of(text, version_places, version_pairs, version_flags);
    json_object_set_new(row, "at_source",
                        json_boolean(!json_is_true(json_object_get(row, "gone-at-source"))));
    json_object_del(row, "gone-at-source");
    return row;
}

static void model_line(json_t *model, char *key, char *rest)
{
    if (!strncmp(key, "version.", 8)) {
        if (*rest)
            rest[-1] = ' '; /* the name is part of the key */
        json_array_append_new(json_object_get(model, "versions"), version_of(key + 8));
    } else if (strcmp(key, "engines")) { /* their number: they come as objects */
        put(model, model_fields, key, rest);
    }
}

static void engine_line(json_t *model, char *key, char *rest)
{
    if (*rest)
        rest[-1] = ' ';
    json_array_append_new(json_object_get(model, "engines"), row_of(key, engine_places, engine_pairs, NULL));
}

static void history_line(json_t *model, char *key, char *rest)
{
    if (*rest)
        rest[-1] = ' ';
    json_array_append_new(json_object_get(model, "history"),
                          row_of(key, history_places, history_pairs, NULL));
}

json_t *ws_status_json_model(const char *model, const struct ws_status_texts *texts)
{
    json_t *o = object_of(model_fields);
    json_object_set_new(o, "model", ws_json_text(model));
    json_object_set_new(o, "last_error", error_of(texts->last_error));
    json_object_set_new(o, "versions", json_array());
    json_object_set_new(o, "history", json_array());
    json_object_set_new(o, "engines", json_array());
    each_line(texts->status, model_line, o);
    each_line(texts->engines, engine_line, o);
    each_line(texts->history, history_line, o);
    return o;
}

/* --- of this process --- */

struct reading {
    struct ws_control *control;
    json_t *models;
};

/* To be freed; NULL: no memory. */
static char *read_view(struct ws_control *c, enum ws_view view, struct ws_model *m)
{
    char *text = NULL;
    size_t n;
    return ws_control_read(c, view, m, NULL, &text, &n) < 0 ? NULL : text;
}

static void read_model(void *arg, struct ws_model *m)
{
    struct reading *r = arg;
    char *status = read_view(r->control, WS_VIEW_STATUS, m),
         *engines = read_view(r->control, WS_VIEW_ENGINES, m),
         *history = read_view(r->control, WS_VIEW_HISTORY, m),
         *error = read_view(r->control, WS_VIEW_LAST_ERROR, m);
    if (status && engines && history && error)
        json_array_append_new(
            r->models, ws_status_json_model(ws_model_name(m),
                                            &(struct ws_status_texts){status, engines, history, error}));
    free(status);
    free(engines);
    free(history);
    free(error);
}

json_t *ws_status_json(struct ws_control *c)
{
    struct reading r = {.control = c, .models = json_array()};
    char *status = read_view(c, WS_VIEW_STATUS, NULL), *error = read_view(c, WS_VIEW_LAST_ERROR, NULL);
    json_t *root = status && error ? ws_status_json_mount(status, error) : NULL;
    free(status);
    free(error);
    ws_store_each(c->store, read_model, &r);
    if (root)
        json_object_set_new(root, "mount", ws_json_text(c->options.mountpoint));
    if (root)
        json_object_set_new(root, "models", r.models);
    else
        json_decref(r.models);
    return root;
}
