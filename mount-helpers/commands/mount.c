/* wsync mount, umount; also mount(8)'s helper: mount.wsync SOURCE DIR [-sfnv] [-o OPTIONS]. */
#include "fs/fuse/unmount.h"
#include "fs/kept.h"
#include "fs/session.h"
#include "fs/takeover.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/systemd.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option mount_options[] = {
    {"options", 'o', "LIST", "mount options, comma-separated; --list-options prints them"},
    {"serve", 0, "HOST:PORT", "be a source for other mounts: the mount option serve="},
    {"fuse-socket", 0, "PATH",
     "somebody else mounts, and sends the descriptor: the mount option fuse-socket="},
    {"supervised", 0, NULL,
     "a daemon that dies is replaced, and nobody finds it dead: the mount option supervised"},
    {"takeover", 0, "DIR", "the supervised mount there goes on with this binary, and nobody finds it gone"},
    {"foreground", 'f', NULL, "serve in this process instead of a daemon"},
    {"list-options", 0, NULL, "print the mount options"},
    {"verbose", 'v', NULL, "accepted for mount(8)"},
    {"no-mtab", 'n', NULL, "accepted for mount(8)"},
    {"sloppy", 's', NULL, "accepted for mount(8)"},
    {"type", 't', "TYPE", "accepted for mount(8)"},
    {0},
};

static int list_options(void)
{
    const char *name, *meaning;
    for (size_t i = 0; ws_mount_option_help(i, &name, &meaning); i++)
        printf("%-34s %s\n", name, meaning);
    return CLI_OK;
}

/* A source that is down is no error, since it may come back; but the operator should be warned. */
static void warn_of_sources(const char *mount)
{
    char *text = mounts_read("%s/status", mount), *save = NULL;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save))
        if (strncmp(line, "source ", 7) == 0 && strstr(line, " down "))
            fprintf(stderr, "wsync mount: mounted, but its source does not answer yet: %s\n", line + 7);
    free(text);
}

/* A mount option that is an option of the command, too. */
static int add_option(struct ws_mount_options *o, const struct cli_args *args, const char *name,
                      struct ws_error *err)
{
    char text[512];
    if (!cli_get(args, name))
        return 0;
    if (snprintf(text, sizeof(text), "%s=%s", name, cli_get(args, name)) >= (int)sizeof(text))
        return ws_error_set(err, EINVAL, "--%s takes at most %zu bytes", name, sizeof(text) - 32);
    return ws_mount_options_parse(o, text, err);
}

static int take_over(const struct cli_args *args)
{
    struct ws_error err = {0};
    char said[WS_ERROR_TEXT];
    const char *dir = cli_get(args, "takeover");
    if (cli_words(args) || cli_has(args, "options"))
        return cli_usage(
            "--takeover goes with no other option or word: a mount keeps those that it was mounted with");
    if (ws_takeover(dir, said, &err) < 0)
        return cli_fail("%s", err.text);
    printf("%s: %s\n", dir, said);
    return CLI_OK;
}

static int run_mount(const struct cli_args *args)
{
    struct ws_mount_options o;
    struct ws_error err = {0};
    int rc = 0;
    if (cli_has(args, "list-options"))
        return list_options();
    if (cli_has(args, "takeover"))
        return take_over(args);
    ws_kept_begin();
    if (cli_words(args) != 2)
        return cli_usage("a source and a folder are needed: wsync mount http://HOST:18861 /wsync");
    ws_mount_options_init(&o);
    for (size_t i = 0; rc == 0; i++) {
        const char *text = cli_nth(args, "options", i);
        if (!text)
            break;
        rc = ws_mount_options_parse(&o, text, &err);
    }
    if (rc == 0)
        rc = add_option(&o, args, "serve", &err);
    if (rc == 0)
        rc = add_option(&o, args, "fuse-socket", &err);
    if (rc == 0 && cli_has(args, "supervised"))
        rc = ws_mount_options_parse(&o, "supervised", &err);
    if (rc == 0)
        rc = ws_mount_options_place(&o, cli_word(args, 0), cli_word(args, 1), &err);
    if (rc == 0)
        rc = ws_mount_options_read_needs(&o, &err);
    o.foreground = cli_has(args, "foreground");
    signal(SIGPIPE, SIG_IGN);
    cli_allow_descriptors();
    if (rc == 0)
        rc = ws_session_run(&o, notify_ready, &err);
    if (rc == 0 && !o.foreground && !ws_mount_options_is_given(&o))
        warn_of_sources(o.mountpoint);
    ws_mount_options_release(&o);
    if (rc < 0)
        ws_kept_refuse(&err);
    if (rc < 0)
        return err.code == EINVAL ? cli_usage("%s", err.text) : cli_fail("%s", err.text);
    return CLI_OK;
}

const struct cli_command cmd_mount = {
    .name = "mount",
    .summary = "show the versions of a run as files below a folder",
    .synopsis = "[-f] [--serve HOST:PORT] [--supervised] [--fuse-socket PATH] [-o OPTIONS] "
                "SOURCE[,SOURCE...] DIR|/dev/fd/N\n--takeover DIR",
    .description =
        "SOURCE is http://HOST:PORT or https://HOST:PORT (an agent), with ;token-file=/PATH behind it where "
        "a token is "
        "for that source alone, unix:/PATH (an agent on this "
        "host: memory is "
        "shared, no byte is copied) or dir:/PATH (checkpoints on disk: PATH/MODEL/N or PATH/N, whose "
        "numbered folders are versions, or one checkpoint). "
        "Several sources are alternatives for the models they share.\n\n"
        "Returns when the mount answers; a daemon serves it from then on. A dead mount on DIR is "
        "recovered, a live one "
        "is left alone, and one that does not answer for 5 s, as its daemon is stopped, is named. 'wsync "
        "mount "
        "--list-options' prints every mount option with its meaning. "
        "With --serve other mounts have this one as their source, so that a tree of them fans out what the "
        "trainer "
        "sends once; blocks are passed on while they arrive. A mount whose sources are a serving mount and "
        "the "
        "agent, in this order, takes its bytes from the first, orders and a way out from the second, and "
        "refuses "
        "a version that they list with different digests. It listens as the agent does: beyond loopback only "
        "with a token.\n\n"
        "With -o derive=actor@fp8-block128 it makes a quantised view of each version of actor that is asked "
        "for, which is "
        "a model beside actor; wsync(7) has more.\n\n"
        "Where this process may not mount, somebody else can: who has opened /dev/fuse and mounted it leaves "
        "it the "
        "descriptor, as /dev/fd/N, or sends it over a unix socket (--fuse-socket); DIR is then the folder "
        "where engines see "
        "the mount, and need not be here. Whoever mounted it also unmounts it, which ends the daemon.\n\n"
        "With --supervised a daemon that dies is replaced while its mount stays: see A DAEMON THAT DIES in "
        "wsync-fleet(7). With --takeover such a mount goes on with the binary that is called, with the "
        "options "
        "that it was mounted with: see ANOTHER RELEASE there.\n\n"
        "It raises its soft limit of open files to the hard one (a version has a file descriptor a file, a "
        "connection one); the hard one is LimitNOFILE= of its unit, or ulimit -Hn.\n\n"
        "In fstab: https://HOST:18861 /wsync wsync _netdev,token-file=/etc/wsync/token,group=engines 0 0",
    .examples =
        "wsync mount http://127.0.0.1:18861 /wsync\n"
        "wsync mount -o open=stream,keep=3,cache=80G unix:/run/wsync/agent.sock /wsync\n"
        "wsync mount --serve 0.0.0.0:18863 -o insecure,token-file=/etc/wsync/token http://10.0.0.3:18861 "
        "/wsync\n"
        "wsync mount 'https://rack:18863;token-file=/etc/wsync/rack.token,https://trainer:18861' /wsync\n"
        "wsync mount --serve 0.0.0.0:18863 -o derive=actor@fp8-block128,token-file=/etc/wsync/token "
        "https://node0:18861,https://node1:18861 /wsync\n"
        "mount -t wsync https://trainer:18861 /wsync -o token-file=/etc/wsync/token,group=engines\n"
        "wsync mount --takeover /wsync",
    .options = mount_options,
    .max_words = 2,
    .run = run_mount,
};

#define STILL_ENDING 3 /* the exit status of umount where the mount is gone and its daemon is not */

static const struct cli_option umount_options[] = {
    {"mount", 'd', "DIR", "the mount, where DIR is not given as a word"},
    {"lazy", 'l', NULL, "take it away now; open files go on being readable"},
    {0},
};

static int run_umount(const struct cli_args *args)
{
    struct ws_error err = {0};
    const char *mount = cli_word(args, 0) ? cli_word(args, 0) : cli_get(args, "mount");
    if (!mount || (cli_word(args, 0) && cli_has(args, "mount")))
        return cli_usage("name one mount, as 'wsync umount DIR' or with --mount DIR");
    const int rc = ws_unmount(mount, cli_has(args, "lazy"), &err);
    if (rc < 0)
        (void)cli_fail("%s", err.text);
    return rc == 0 ? CLI_OK : rc == -EINPROGRESS ? STILL_ENDING : CLI_FAILED;
}

const struct cli_command cmd_umount = {
    .name = "umount",
    .summary = "end a mount",
    .synopsis = "[--lazy] DIR",
    .description =
        "Ends the mount, and waits until its daemon has ended, when it has told its sources and engines: the "
        "folder, "
        "its memory and its ports are free then. After 10 s it waits no longer, names the daemon's process, "
        "and "
        "exits with status 3. Of several umounts at once each succeeds, or says that no mount is there. It "
        "does not wait with --lazy, nor for a daemon in another network namespace. "
        "Engines keep what they have loaded, and mappings stay readable. "
        "Root tries a busy mount again for 2.5 s; it is left as it was then.",
    .examples = "wsync umount /wsync",
    .statuses = "3: it is unmounted, and its daemon had not ended after 10 s.",
    .options = umount_options,
    .max_words = 1,
    .run = run_umount,
};
