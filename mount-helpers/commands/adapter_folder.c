#include "mount-helpers/commands/adapter_folder.h"
#include "backends/engine/adapter_config.h"
#include "backends/engine/adapter_tensors.h"
#include "transports/base/file.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which engine will load it is not known here: vLLM's rules refuse what no engine serves. */
static int parse(const char *text, size_t n, json_t **config, struct ws_error *err)
{
    const struct ws_adapter_server server = {.kind = "vllm"};
    int rc = ws_adapter_check(text, n, &server, NULL, err);

    if (rc == 0 && !(*config = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL)))
        rc = ws_error_set(err, ENOMEM, "no memory for an adapter's config");
    return rc;
}

static int read_config(const struct ws_folder *folder, const struct ws_folder_file *file, json_t **config,
                       struct ws_error *err)
{
    const size_t n = file->size_bytes < WS_MAX_ADAPTER_CONFIG_BYTES ? (size_t)file->size_bytes
                                                                    : WS_MAX_ADAPTER_CONFIG_BYTES + 1;
    int fd = ws_folder_file_open(folder, file, err), rc;

    if (fd < 0)
        return fd;
    char *text = malloc(n + 1);
    const ssize_t got = text ? ws_file_read(fd, text, n, 0) : 0;
    close(fd);
    if (!text)
        rc = ws_error_set(err, ENOMEM, "no memory for an adapter's config");
    else if (got < 0)
        rc = ws_error_set(err, (int)-got, "cannot read %s: %s", file->path, strerror((int)-got));
    else
        rc = parse(text, (size_t)got, config, err);
    free(text);
    return rc;
}

static int check_files(const struct ws_folder_file *config, const struct ws_folder_file *weights,
                       const struct ws_folder_file *other, struct ws_error *err)
{
    if (!weights)
        return ws_error_set(err, EBADMSG,
                            "there is " WS_ADAPTER_CONFIG_NAME " and no " WS_ADAPTER_WEIGHTS_NAME
                            ": save the adapter with safetensors, or take the file out of a model's folder");
    if (!config)
        return ws_error_set(err, EBADMSG,
                            "there is " WS_ADAPTER_WEIGHTS_NAME " and no " WS_ADAPTER_CONFIG_NAME
                            ", without which no engine loads it: PEFT's save_pretrained writes both");
    if (other)
        return ws_error_set(
            err, EBADMSG,
            "there is an adapter, and other weights beside it (%.160s): a version is the one or "
            "the other; publish each from a folder of its own",
            other->name);
    return 0;
}

int adapter_folder_read(const struct ws_folder *folder, json_t **config, struct ws_error *err)
{
    const struct ws_folder_file *described = NULL, *weights = NULL, *other = NULL;

    *config = NULL;
    for (size_t i = 0; i < folder->n_files; i++) {
        const struct ws_folder_file *file = &folder->files[i];
        if (strcmp(file->name, WS_ADAPTER_CONFIG_NAME) == 0)
            described = file;
        else if (strcmp(file->name, WS_ADAPTER_WEIGHTS_NAME) == 0)
            weights = file;
        else if (file->st)
            other = file;
    }
    if (!described && !weights)
        return 0;
    int rc = check_files(described, weights, other, err);
    if (rc == 0) {
        assert(described && weights);
        rc = read_config(folder, described, config, err);
        if (rc == 0)
            rc = ws_adapter_check_tensors(*config, weights->st, err);
    }
    if (rc == 0)
        return 0;
    json_decref(*config);
    *config = NULL;
    return ws_error_prefix(err, "adapter %s", folder->path);
}

char *adapter_folder_rename_base(const json_t *config, const char *base_name)
{
    json_t *renamed = json_copy((json_t *)config);
    char *text = NULL;

    if (renamed && json_object_set_new(renamed, "base_model_name_or_path", json_string(base_name)) == 0)
        text = json_dumps(renamed, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(renamed);
    return text;
}
