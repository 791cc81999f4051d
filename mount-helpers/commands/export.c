/* wsync export: versions as plain files, without FUSE. */
#include "fs/export.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/systemd.h"
#include <pthread.h>
#include <stdatomic.h>

static const struct cli_option options[] = {
    {"options", 'o', "LIST",
     "mount options that make sense here: cache= keep= streams= threads= nice= token-file= ..."},
    {0},
};

static atomic_bool stop;

static void *wait_signal(void *arg)
{
    (void)arg;
    (void)cli_wait_signal();
    atomic_store(&stop, true);
    return NULL;
}

static int run(const struct cli_args *args)
{
    struct ws_mount_options o;
    struct ws_error err = {0};
    pthread_t thread;
    int rc = 0;
    ws_mount_options_init(&o);
    const char *text;
    for (size_t i = 0; rc == 0 && (text = cli_nth(args, "options", i)); i++)
        rc = ws_mount_options_parse(&o, text, &err);
    if (rc == 0)
        rc = ws_mount_options_place(&o, cli_word(args, 0), cli_word(args, 1), &err);
    cli_block_signals();
    if (rc == 0 && pthread_create(&thread, NULL, wait_signal, NULL) == 0)
        pthread_detach(thread);
    if (rc == 0)
        rc = ws_export_run(&o, &stop, notify_ready, &err);
    ws_mount_options_release(&o);
    return rc < 0 ? cli_fail("%s", err.text) : CLI_OK;
}

const struct cli_command cmd_export = {
    .name = "export",
    .summary = "keep versions as plain files in a folder, where there is no /dev/fuse",
    .synopsis = "[-o OPTIONS] SOURCE[,SOURCE...] DIR",
    .description = "Fetches each new version and shows it as DIR/MODEL/VERSION once it is complete, with a "
                   "link 'latest'; "
                   "versions that are no longer kept vanish. Files are links of the fetched memory in a "
                   "huge-page tmpfs mounted on "
                   "DIR, or copies where mounting is not allowed. Runs until it is interrupted; there are no "
                   "control files.",
    .examples = "wsync export -o keep=2 http://10.0.0.3:18861 /dev/shm/wsync",
    .options = options,
    .min_words = 2,
    .max_words = 2,
    .run = run,
};
