/* Files of -o config= under libFuzzer. What is accepted keeps the grammar's promises, and is the same again after it went
 * through the settings' lines; what is refused is named with its line. */
#include "fs/control/config_file.h"
#include "transports/base/name.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void check_same(const struct ws_config_lines *a, const struct ws_config_lines *b)
{
    require(a->len == b->len);
    for (size_t i = 0; i < a->len; i++)
        require(!strcmp(a->ptr[i].text, b->ptr[i].text) && !strcmp(a->ptr[i].word, b->ptr[i].word));
}

static void check_lines(const struct ws_config_lines *lines)
{
    for (size_t i = 0; i < lines->len; i++) {
        const struct ws_config_line *l = &lines->ptr[i];
        require(l->line > 0 && !strcmp(l->file, "FILE") && strlen(l->text) <= WS_MAX_COMMAND);
        require(ws_config_find(lines, l->word) == l); /* no word twice */
    }
}

/* By the lines in which the settings keep them. */
static struct ws_config_model *read_again(const struct ws_config_model *m)
{
    const struct ws_config_lines *const kinds[] = {&m->engines, &m->pins, &m->sources};
    struct ws_config_model *again = NULL;
    char line[WS_POLICY_CHARS + 16], word[WS_POLICY_CHARS];
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < kinds[k]->len; i++)
            ws_config_read_declared(&again, m->name, kinds[k]->ptr[i].text);
    if (m->has_policy) {
        ws_controller_policy_text(&m->wanted, word);
        snprintf(line, sizeof(line), "policy %s", word);
        ws_config_read_declared(&again, m->name, line);
        require(again && again->has_policy && ws_config_has_policy(&again->wanted, &m->wanted));
    }
    if (m->has_commit) {
        ws_controller_commit_text(&m->wanted, word);
        snprintf(line, sizeof(line), "commit %s", word);
        ws_config_read_declared(&again, m->name, line);
        require(again && again->has_commit && again->wanted.commit == m->wanted.commit &&
                again->wanted.commit_n == m->wanted.commit_n);
    }
    return again;
}

static void check_model(const struct ws_config_model *m)
{
    require(ws_name_is_model(m->name));
    check_lines(&m->engines);
    check_lines(&m->pins);
    check_lines(&m->sources);
    struct ws_config_model *again = read_again(m);
    if (again) {
        require(!strcmp(again->name, m->name) && !again->next);
        check_same(&m->engines, &again->engines);
        check_same(&m->pins, &again->pins);
        check_same(&m->sources, &again->sources);
    }
    ws_config_file_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_config_model *all = NULL;
    struct ws_error err = {0};
    char *text = malloc(size + 1); /* as it is read: a NUL follows */
    require(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    if (ws_config_text_read("FILE", text, size, &all, &err) == 0) {
        for (const struct ws_config_model *m = all; m; m = m->next)
            check_model(m);
    } else {
        require(!all && err.code > 0 && (!strncmp(err.text, "FILE:", 5) || !strncmp(err.text, "FILE ", 5)));
    }
    ws_config_file_free(all);
    free(text);
    return 0;
}
