/* wsync token: the tokens file of an agent or a serving mount: who its clients are, and what each may do. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/table.h"
#include "transports/access/token_file.h"
#include "transports/base/json_text.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct cli_option options[] = {
    {"role", 'r', "ROLES",
     "add: what it may do: read, report, release, publish, node, admin; with commas between"},
    {"model", 'm', "PATTERN",
     "add: only these models, as 'actor*'; may be given several times; default: all"},
    {"rotate", 0, NULL,
     "add: a second token of a name that is there, with the roles of the first unless given"},
    {"certificate", 0, NULL,
     "add: no token: it is known by its client certificate alone, which has the name in it"},
    {"out", 'o', "FILE", "add: write the token to this file, mode 0600, instead of to standard output"},
    {"oldest", 0, NULL, "remove: of several lines of the name only the one that was added first"},
    {"file", 'f', "FILE", "the tokens file; default " WS_TOKENS_FILE},
    {"json", 'j', NULL, "list: print JSON"},
    {0},
};

static const char *file_of(const struct cli_args *args)
{
    const char *file = cli_get(args, "file");
    return file ? file : WS_TOKENS_FILE;
}

/* --- add --- */

/* All --model, with commas between. malloc'ed; NULL: there is none. */
static char *models_of(const struct cli_args *args)
{
    char *all = NULL;
    for (size_t i = 0; cli_nth(args, "model", i); i++) {
        char *more;
        if (asprintf(&more, "%s%s%s", all ? all : "", all ? "," : "", cli_nth(args, "model", i)) < 0)
            exit(cli_fail("no memory"));
        free(all);
        all = more;
    }
    return all;
}

/* The one time that the secret is shown. */
static int show(const struct cli_args *args, const char *secret)
{
    char line[WS_TOKEN_SECRET_CHARS + 2];
    const char *out = cli_get(args, "out");
    (void)stpcpy(stpcpy(line, secret), "\n");
    int rc = 0;
    if (out)
        rc = ws_state_file_write(out, line, strlen(line));
    else if (fputs(line, stdout) == EOF || fflush(stdout) != 0)
        rc = -errno;
    explicit_bzero(line, sizeof(line));
    return rc;
}

/* A token never takes the place of the tokens file, of a device or of a link. */
static int check_out(const char *out, const char *path)
{
    struct stat st, tokens;
    if (!out || lstat(out, &st) != 0)
        return CLI_OK;
    if (!S_ISREG(st.st_mode))
        return cli_usage("--out %s is no plain file: name a file of its own for the token", out);
    if (stat(path, &tokens) == 0 && tokens.st_dev == st.st_dev && tokens.st_ino == st.st_ino)
        return cli_usage("--out %s is the tokens file itself: name a file of its own for the token", out);
    return CLI_OK;
}

static int add(const struct cli_args *args)
{
    const char *path = file_of(args), *roles = cli_get(args, "role");
    char secret[WS_TOKEN_SECRET_CHARS + 1], *models = models_of(args);
    struct ws_token_hash hash;
    struct ws_token_new t = {.name = cli_word(args, 1), .models = models, .rotates = cli_has(args, "rotate")};
    struct ws_error err = {0};
    if (!roles && (!t.rotates || models))
        return cli_usage("what may it do? --role read,report is what a mount needs");
    if (cli_has(args, "certificate") && cli_has(args, "out"))
        return cli_usage("--certificate makes no token that --out could write");
    if (check_out(cli_get(args, "out"), path) != CLI_OK)
        return CLI_USAGE;
    if (roles && ws_roles_parse(roles, strlen(roles), &t.roles, &err) < 0)
        return cli_usage("--role: %s", err.text);
    if (!cli_has(args, "certificate")) {
        ws_token_secret_new(secret);
        ws_token_hash(secret, &hash);
        t.hash = &hash;
    }
    int rc = ws_token_file_add(path, &t, &err), code = rc < 0 ? cli_fail("%s", err.text) : CLI_OK;
    if (rc == 0 && t.hash && (rc = show(args, secret)) < 0) {
        if (ws_token_file_remove(path, t.name, WS_TOKEN_NEWEST, &err) < 0)
            fprintf(stderr, "wsync token: %s\n", err.text);
        code = cli_fail("cannot write the token to %s: %s; its line is taken back",
                        cli_has(args, "out") ? cli_get(args, "out") : "standard output", strerror(-rc));
    }
    explicit_bzero(secret, sizeof(secret));
    free(models);
    return code;
}

/* --- list --- */

static int order(const void *a, const void *b)
{
    const struct ws_token_line *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static json_t *line_json(const struct ws_token_line *l)
{
    json_t *roles = json_array();
    for (unsigned role = WS_ROLE_READ; role <= WS_ROLE_ADMIN; role <<= 1)
        if (l->identity.roles & role)
            json_array_append_new(roles, json_string(ws_role_name(role)));
    return json_pack("{s:s,s:o,s:s,s:s,s:i}", "name", l->identity.name, "roles", roles, "models",
                     l->identity.models[0] ? l->identity.models : "*", "kind",
                     l->has_hash ? "token" : "certificate", "line", (int)l->number);
}

static const struct table_column columns[] = {
    {.name = "NAME", .gives_way = true},
    {.name = "ROLES"},
    {.name = "MODELS", .gives_way = true},
    {.name = "KIND"},
};

static int list(const struct cli_args *args)
{
    const char *path = file_of(args);
    struct ws_token_table t;
    struct ws_error err = {0};
    if (ws_token_table_read(&t, path, &err) < 0)
        return cli_fail("%s", err.text);
    if (t.lines.len)
        qsort(t.lines.ptr, t.lines.len, sizeof(*t.lines.ptr), order);
    json_t *rows = cli_has(args, "json") ? json_array() : NULL;
    struct table *table = rows ? NULL : table_new(columns, sizeof columns / sizeof columns[0], 0);
    for (size_t i = 0; i < t.lines.len; i++) {
        const struct ws_token_line *l = &t.lines.ptr[i];
        char roles[WS_ROLES_TEXT];
        if (rows)
            json_array_append_new(rows, line_json(l));
        else
            table_row(table, (const char *[]){l->identity.name, ws_roles_print(l->identity.roles, roles),
                                              l->identity.models[0] ? l->identity.models : "*",
                                              l->has_hash ? "token" : "certificate"});
    }
    ws_token_table_clear(&t);
    if (table)
        table_print(table);
    return rows ? json_print(json_pack("{s:o,s:o}", "file", ws_json_text(path), "tokens", rows)) : CLI_OK;
}

/* --- remove --- */

static int remove_lines(const struct cli_args *args)
{
    struct ws_error err = {0};
    const int rc = ws_token_file_remove(file_of(args), cli_word(args, 1),
                                        cli_has(args, "oldest") ? WS_TOKEN_OLDEST : WS_TOKEN_ALL, &err);
    return rc < 0 ? cli_fail("%s", err.text) : CLI_OK;
}

static int run(const struct cli_args *args)
{
    static const struct {
        const char *name;
        size_t words;
        int (*run)(const struct cli_args *args);
        const char *takes[8]; /* its options */
    } verbs[] = {
        {"add", 2, add, {"role", "model", "rotate", "certificate", "out", "file"}},
        {"list", 1, list, {"json", "file"}},
        {"remove", 2, remove_lines, {"oldest", "file"}},
    };
    const char *verb = cli_word(args, 0);
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verbs[i].name, verb) != 0)
            continue;
        if (cli_words(args) != verbs[i].words)
            return cli_usage("%s takes %s", verb, verbs[i].words == 1 ? "no name" : "one name");
        for (const struct cli_option *o = options; o->name; o++) {
            bool takes = false;
            for (const char *const *t = verbs[i].takes; *t; t++)
                takes = takes || strcmp(*t, o->name) == 0;
            if (cli_has(args, o->name) && !takes)
                return cli_usage("%s takes no --%s", verb, o->name);
        }
        return verbs[i].run(args);
    }
    return cli_usage("'%s' is not add, list or remove", verb);
}

const struct cli_command cmd_token = {
    .name = "token",
    .summary = "the tokens file: who the clients of an agent or a serving mount are, and what each may do",
    .synopsis =
        "add NAME --role ROLES [OPTIONS]\nadd NAME --rotate [OPTIONS]\nlist [--json]\nremove NAME [--oldest]",
    .description = "`add` appends a line, and prints the token once: the file keeps a hash of it. A mount "
                   "needs the roles "
                   "read,report; a trainer that releases read,release; another agent of the same trainer "
                   "read,node. Servers "
                   "read the file again when it changes.\n\n"
                   "To exchange a token, add one more with --rotate, give it to the client, and remove the "
                   "--oldest. Both work "
                   "meanwhile. Lines of one name have the same roles and models.\n\n"
                   "The file is replaced whole, under a lock. A file with a bad line is left alone, and the "
                   "line is named. "
                   "wsync-security(7) says what each role may do.",
    .examples = "wsync token add rollout-7 --role read,report --out rollout-7.token\n"
                "wsync token add node7.lab --role read,report --model 'actor*' --certificate\n"
                "wsync token list\n"
                "wsync token add rollout-7 --rotate --out rollout-7.token.new\n"
                "wsync token remove rollout-7 --oldest",
    .options = options,
    .min_words = 1,
    .max_words = 2,
    .run = run,
};
