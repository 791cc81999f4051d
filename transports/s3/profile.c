#include "transports/s3/profile.h"
#include "transports/base/below.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILE_BYTES (1UL << 20)

static const char *const others[] = {"role_arn", "credential_process", "sso_session", "sso_start_url",
                                     "login_session"};

/* A service that systemd starts has no HOME. */
static void file_path(char out[4096], const char *variable, const char *name)
{
    const char *given = getenv(variable), *home = getenv("HOME");
    struct passwd entry, *account = NULL;
    char strings[4096];
    if (!home || !*home)
        (void)getpwuid_r(geteuid(), &entry, strings, sizeof(strings), &account);
    if (given && *given)
        snprintf(out, 4096, "%s", given);
    else
        snprintf(out, 4096, "%s/.aws/%s", account ? account->pw_dir : home ? home : "", name);
}

static char *trim(char *text)
{
    while (*text == ' ' || *text == '\t')
        text++;
    for (size_t n = strlen(text); n > 0 && strchr(" \t\r", text[n - 1]);)
        text[--n] = 0;
    return text;
}

/* [NAME], and in the file "config" [profile NAME] of all but the default. */
static bool is_section(char *line, const char *name)
{
    char *end = strchr(line, ']');
    if (!end)
        return false;
    *end = 0;
    char *inside = trim(line + 1);
    if (strncmp(inside, "profile", 7) == 0 && (inside[7] == ' ' || inside[7] == '\t'))
        inside = trim(inside + 7);
    return strcmp(inside, name) == 0;
}

/* The file that is read first counts. */
static void keep_secret(char **out, const char *value)
{
    if (!*out && *value)
        *out = ws_secret_copy(value);
}

static void keep(char *out, size_t room, const char *value)
{
    if (!*out)
        snprintf(out, room, "%s", value);
}

static void take(struct ws_s3_profile *p, const char *key, const char *value)
{
    if (strcmp(key, "aws_access_key_id") == 0)
        keep_secret(&p->key_id, value);
    else if (strcmp(key, "aws_secret_access_key") == 0)
        keep_secret(&p->secret, value);
    else if (strcmp(key, "aws_session_token") == 0)
        keep_secret(&p->session, value);
    else if (strcmp(key, "region") == 0)
        keep(p->region, sizeof(p->region), value);
    else if (strcmp(key, "endpoint_url") == 0)
        keep(p->endpoint, sizeof(p->endpoint), value);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(key, others[i]) == 0)
            keep(p->other, sizeof(p->other), key);
}

/* Lines that are indented belong to a setting of settings ("s3 ="), which is none of ours. */
static int read_file(struct ws_s3_profile *p, const char *path, bool *found, struct ws_error *err)
{
    bool inside = false;
    char *text, *next;
    size_t n;
    int rc = ws_below_read(NULL, path, MAX_FILE_BYTES, &text, &n, err);
    if (rc == -ENOENT || rc == -ENOTDIR)
        return 0;
    if (rc < 0)
        return rc;
    ws_secret_hide(text, n);
    for (char *line = text; line; line = next) {
        if ((next = strchr(line, '\n')))
            *next++ = 0;
        char *equals = strchr(line, '=');
        if (line[0] == '[') {
            inside = is_section(line, p->name);
            *found = *found || inside;
        } else if (inside && equals && !strchr("#; \t", line[0])) {
            *equals = 0;
            take(p, trim(line), trim(equals + 1));
        }
    }
    explicit_bzero(text, n);
    free(text);
    return 0;
}

int ws_s3_profile_read(struct ws_s3_profile *out, struct ws_error *err)
{
    const char *wanted = getenv("AWS_PROFILE");
    char first[4096], second[4096];
    bool found = false;
    *out = (struct ws_s3_profile){0};
    snprintf(out->name, sizeof(out->name), "%s", wanted && *wanted ? wanted : "default");
    file_path(first, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
    file_path(second, "AWS_CONFIG_FILE", "config");
    int rc = read_file(out, first, &found, err);
    if (rc == 0)
        rc = read_file(out, second, &found, err);
    if (rc == 0 && !found && wanted && *wanted)
        rc = ws_error_set(err, EINVAL, "AWS_PROFILE names '%s', and neither %s nor %s has such a profile",
                          out->name, first, second);
    if (rc < 0)
        ws_s3_profile_release(out);
    return rc;
}

void ws_s3_profile_release(struct ws_s3_profile *p)
{
    ws_secret_free(p->key_id);
    ws_secret_free(p->secret);
    ws_secret_free(p->session);
    *p = (struct ws_s3_profile){0};
}
