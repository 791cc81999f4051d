/* wsync key: makes keys that versions are signed with. */
#include "transports/sign/key.h"
#include "mount-helpers/cli/cli.h"
#include "transports/base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_FILE "wsync.key"

static const struct cli_option options[] = {
    {"out", 'o', "FILE", "the secret key's file; the public one is FILE.pub; default " DEFAULT_FILE},
    {"name", 0, "NAME", "for people, in both files; default: this host's name"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

static int write_public(const struct ws_public_key *k, const char *path)
{
    char line[WS_KEY_LINE_CHARS];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    int rc = fd < 0 ? -errno : 0;

    ws_public_key_print(k, line);
    if (rc == 0)
        rc = ws_file_write(fd, line, strlen(line));
    if (fd >= 0)
        close(fd);
    return rc < 0 ? cli_fail("cannot make %s: %s", path, strerror(-rc)) : CLI_OK;
}

static int new_key(const struct cli_args *args)
{
    const char *out = cli_get(args, "out") ? cli_get(args, "out") : DEFAULT_FILE;
    const char *name = cli_get(args, "name");
    char host[WS_KEY_NAME_CHARS + 1] = "wsync", public_path[PATH_MAX];
    struct ws_error err = {0};
    struct ws_secret_key *k;

    if (!name && gethostname(host, sizeof host - 1) == 0)
        name = host;
    if (snprintf(public_path, sizeof public_path, "%s.pub", out) >= (int)sizeof public_path)
        return cli_fail("the name of the key's file is too long");
    if (ws_secret_key_new(name ? name : host, &k, &err) < 0)
        return err.code == EINVAL ? cli_usage("%s; give another --name", err.text) : cli_fail("%s", err.text);
    int code = ws_secret_key_write(k, out, &err) < 0 ? cli_fail("%s", err.text) : CLI_OK;
    if (code == CLI_OK && (code = write_public(ws_secret_key_public(k), public_path)) != CLI_OK)
        (void)unlink(out);
    if (code == CLI_OK && !cli_has(args, "quiet"))
        printf("%s: key %s of %s; keep it on the trainer's nodes, and give mounts %s\n", out,
               ws_secret_key_public(k)->id, ws_secret_key_public(k)->name, public_path);
    ws_secret_key_free(k);
    return code;
}

static int run(const struct cli_args *args)
{
    if (strcmp(cli_word(args, 0), "new") != 0)
        return cli_usage("'%s' is nothing that can be done with keys: wsync key new", cli_word(args, 0));
    return new_key(args);
}

const struct cli_command cmd_key = {
    .name = "key",
    .summary = "make a key that versions are signed with",
    .synopsis = "new [--out FILE] [--name NAME]",
    .description =
        "Makes a secret key (mode 0600) for 'wsync agent --sign-key', and a public one beside it for the "
        "mount "
        "option verify-key=. Neither file is overwritten. Each is one line of text. To exchange a key, give "
        "mounts both public keys, then the agent the new secret one, then take the old public one away.",
    .examples = "wsync key new --out /etc/wsync/run7.key --name run7",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
