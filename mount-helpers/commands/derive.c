/* wsync derive: a quantised checkpoint folder out of another one. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/commands/derive_folder.h"
#include "transports/base/cpu_features.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_bool stop; /* a signal asks for it */

static const struct cli_option options[] = {
    {"recipe", 'r', "NAME", "what to make of the weights; --list has the names"},
    {"ignore", 'i', "PATTERN",
     "a linear layer to leave as it is: its full name, or re: and a regular expression; may be given again"},
    {"any-family", 0, NULL,
     "a model whose family is not known is not refused: all 2-D weights are quantised but embeddings, norms, "
     "routers "
     "and lm_head"},
    {"list", 'l', NULL, "print the recipes and whose arithmetic they are"},
    {"threads", 't', "N", "threads; default: all cores", 0, CLI_MAX_THREADS},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

static void on_stop(int sig)
{
    (void)sig;
    atomic_store(&stop, true);
}

static int list(void)
{
    for (size_t i = 0; ws_recipe_at(i); i++)
        printf("%-20s %s\n", ws_recipe_at(i)->name, ws_recipe_at(i)->equals);
    return CLI_OK;
}

static const char **patterns_of(const struct cli_args *args, size_t *n)
{
    const char **patterns;

    for (*n = 0; cli_nth(args, "ignore", *n);)
        ++*n;
    patterns = calloc(*n + 1, sizeof(*patterns));
    for (size_t i = 0; patterns && i < *n; i++)
        patterns[i] = cli_nth(args, "ignore", i);
    return patterns;
}

static int derive(const struct cli_args *args, struct derive_folder *d)
{
    const bool quiet = cli_has(args, "quiet");
    struct progress progress;
    struct ws_error err = {0};

    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_stop, .sa_flags = SA_RESTART}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_stop, .sa_flags = SA_RESTART}, NULL);
    progress_start(&progress, quiet ? NULL : d->to);
    const double start = cli_now();
    const int rc = derive_folder(d, &progress, &err);
    progress_end(&progress);
    if (rc < 0)
        return cli_fail("%s", err.text);
    if (!quiet)
        printf("%s: %zu of %zu tensors quantised to %s, %s of %s, %s\n", d->to, d->n_quantised, d->n_tensors,
               d->recipe->name, cli_size(d->bytes), cli_size(d->source_bytes), cli_time(cli_now() - start));
    return CLI_OK;
}

static int run(const struct cli_args *args)
{
    struct ws_error err = {0};
    struct derive_folder d = {.from = cli_word(args, 0), .to = cli_word(args, 1), .stop = &stop};

    if (cli_has(args, "list"))
        return list();
    if (!cli_get(args, "recipe") || !d.to)
        return cli_usage("--recipe, SOURCE_DIR and TARGET_DIR are needed");
    if (ws_recipe_find(cli_get(args, "recipe"), &d.recipe, &err) < 0)
        return cli_usage("%s", err.text);
    d.n_threads = (unsigned)cli_u64(args, "threads", 0);
    d.n_threads = d.n_threads ? d.n_threads : ws_cpu_cores(CLI_MAX_THREADS);
    d.options.any_family = cli_has(args, "any-family");
    const char **patterns = patterns_of(args, &d.options.n_ignore);
    if (!patterns)
        return cli_fail("no memory for the patterns");
    d.options.ignore = patterns;
    const int code = derive(args, &d);
    free(patterns);
    return code;
}

const struct cli_command cmd_derive = {
    .name = "derive",
    .summary = "make a quantised checkpoint folder out of another one",
    .synopsis = "--recipe NAME [OPTIONS] SOURCE_DIR TARGET_DIR\n--list",
    .description =
        "Quantises the linear layers of a checkpoint in bf16, f16 or f32 with the arithmetic of a "
        "recipe, bit for bit "
        "that of the tool that --list names. The files keep their names; config.json gets the "
        "quantization_config "
        "that vLLM and SGLang read, the index the new names; tokenizer and other sidecars are "
        "copied. The same source "
        "makes the same bytes on any machine.\n\n"
        "Which layers are linear is known of each model family (model_type in config.json). "
        "Embeddings, lm_head, "
        "norms, routers and vision towers stay as they are, and so do the layers that --ignore "
        "names; a pattern that "
        "names none is an error. Layers that engines fuse (q, k, v; gate, up) are quantised all "
        "or none. A weight that "
        "is NaN or infinite is refused by its name and place.\n\n"
        "TARGET_DIR must be empty or not there, and no link or mount point: the new folder takes its "
        "place when all is written. Until then the files lie beside it in a folder whose name "
        "begins with a dot. ^C and SIGTERM remove that; a run that is killed leaves it behind.",
    .examples = "wsync derive --recipe fp8-block128 ./checkpoint ./checkpoint-fp8\n"
                "wsync derive -r fp8-channel-ct -i 're:.*self_attn.*' ./checkpoint ./checkpoint-ct",
    .options = options,
    .min_words = 0,
    .max_words = 2,
    .run = run,
};
