#include "mount-helpers/commands/release_services.h"
#include "transports/base/jansson_keys.h"
#include "transports/http/url.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SECONDS  600
#define MODEL_ID "default"

/* What an option says of a model: its MODEL=VALUE, or the VALUE without a model where there is only one. */
static const char *value_for(const struct cli_args *args, const char *option, const char *model, bool only)
{
    const char *text, *last = NULL;
    const size_t n = strlen(model);
    for (size_t i = 0; (text = cli_nth(args, option, i)); i++) {
        const char *equals = strchr(text, '=');
        if (equals ? (size_t)(equals - text) == n && strncmp(text, model, n) == 0 : only)
            last = equals ? equals + 1 : text;
    }
    return last;
}

/* A value for a model that is not released is a slip of the pen. */
static int check_models(const struct cli_args *args, const char *option, const json_t *models)
{
    const char *text;
    for (size_t i = 0; (text = cli_nth(args, option, i)); i++) {
        const char *equals = strchr(text, '=');
        if (!equals && json_object_size(models) > 1)
            return cli_usage("--%s %s: of which model? Write MODEL=%s", option, text, text);
        if (equals && !json_object_getn(models, text, (size_t)(equals - text)))
            return cli_usage("--%s %s: that model is not released", option, text);
    }
    return CLI_OK;
}

static int take_urls(const struct cli_args *args, struct release_services *out)
{
    struct ws_error err;
    const char *url;
    while ((url = cli_nth(args, "astraflow-notify", out->n))) {
        if (out->n == RELEASE_MAX_SERVICES)
            return cli_usage("--astraflow-notify more than %d times", RELEASE_MAX_SERVICES);
        if (ws_http_check_url("a service", url, &err) < 0)
            return cli_usage("--astraflow-notify: %s", err.text);
        out->urls[out->n++] = url;
    }
    return CLI_OK;
}

int release_services_take(const struct cli_args *args, const json_t *models, struct release_services *out)
{
    const char *model;
    json_t *version;
    const bool only = json_object_size(models) == 1;
    *out = (struct release_services){0};
    int rc = take_urls(args, out);
    if (rc != CLI_OK || out->n == 0)
        return rc;
    if ((rc = check_models(args, "astraflow-sender", models)) != CLI_OK ||
        (rc = check_models(args, "astraflow-model-id", models)) != CLI_OK)
        return rc;
    json_object_foreach((json_t *)(uintptr_t)models, model, version)
    {
        const char *sender = value_for(args, "astraflow-sender", model, only);
        const char *id = value_for(args, "astraflow-model-id", model, only);
        if (out->n_told == RELEASE_MAX_TOLD)
            return cli_usage("--astraflow-notify tells of %d models at most", RELEASE_MAX_TOLD);
        const char *by_default = only ? MODEL_ID : model;
        if (!sender || !strchr(sender, ':'))
            return cli_usage("--astraflow-notify needs --astraflow-sender %sHOST:PORT, where AstraFlow's "
                             "receivers reach the agent's --astraflow of %s",
                             only ? "" : "MODEL=", model);
        out->told[out->n_told].model = model;
        out->told[out->n_told++].news = (struct raas_news){.model_id = id ? id : by_default,
                                                           .version = (uint64_t)json_integer_value(version),
                                                           .sender = sender};
    }
    return CLI_OK;
}

int release_services_check(struct ws_source *s, const struct release_services *to)
{
    for (size_t i = 0; i < to->n_told; i++) {
        struct ws_error err;
        json_t *models;
        if (ws_source_models(s, to->told[i].model, 0, 0, NULL, &models, &err) < 0)
            return cli_fail("%s", err.text);
        const json_t *model = json_array_get(json_object_get(models, "models"), 0);
        uint64_t newest = (uint64_t)json_integer_value(json_object_get(model, "newest"));
        json_decref(models);
        if (newest != to->told[i].news.version)
            return cli_fail("AstraFlow's receivers take the newest version, which of %s is %" PRIu64
                            " and not %" PRIu64 "; nothing was done",
                            to->told[i].model, newest, to->told[i].news.version);
    }
    return CLI_OK;
}

int release_services_tell(const struct release_services *to, uint64_t seconds, double start, bool quiet,
                          const volatile sig_atomic_t *stop)
{
    int rc = CLI_OK;
    for (size_t i = 0; i < to->n_told; i++) {
        const char *of = to->n_told > 1 ? to->told[i].model : "it";
        double left = seconds ? (double)seconds - (cli_now() - start) : SECONDS;
        size_t n = raas_notify(to->urls, to->n, &to->told[i].news, left > 1 ? (unsigned)left : 1, stop);
        if (n < to->n)
            rc = cli_fail("%zu of %zu of AstraFlow's services have loaded %s", n, to->n, of);
        else if (!quiet)
            printf("%s%sloaded by %zu of AstraFlow's services after %s\n", to->n_told > 1 ? of : "",
                   to->n_told > 1 ? " " : "", n, cli_time(cli_now() - start));
    }
    return rc;
}
