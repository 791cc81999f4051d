/* Adapters: what a controller whose model is an adapter's keeps beside its current version: the names by which engines
 * know the versions, and the versions that engines still list for rollouts that are under way.
 *
 * A version is MODEL@NUMBER to engines, and MODEL@NUMBER@RUN where that number may have been another run's: engines keep
 * files and caches under a name, so a name stands for the same bytes for ever. A run owns the numbers from the lowest to
 * the highest under which its versions were first loaded, as far as no other run owns one between; what is outside has
 * the longer name. The settings keep that, before an engine hears of a name. A name of ours under which somebody else has
 * loaded other files (a stray) is given to no version any more: the one that had it gets the longer name.
 *
 * An engine is told the path MODEL/NUMBER@RUN below the mount point, which stays the same version's when another run has the
 * number. What it lists with any other path, another mount's included, is somebody else's. */
#ifndef WS_FS_ENGINES_ADAPTERS_H
#define WS_FS_ENGINES_ADAPTERS_H
#include "backends/engine/engine.h"
#include "fs/engines/members.h"
#include "transports/base/vector.h"
#include "transports/base/version_id.h"
#include <stdbool.h>

#define WS_ADAPTER_RUNS   8  /* of which numbers are owned; versions of later ones have the longer names */
#define WS_ADAPTER_STRAYS 16 /* ranges of numbers; those that are nearest grow where there are more */
#define WS_MAX_KEPT       64 /* versions of one model */
#define WS_KEPT_PATIENCE  4  /* looks, until what no source lists is kept no more */

struct ws_version;
struct ws_kept_version {
    struct ws_version_id id;
    struct ws_version
        *version;    /* counted, and held as by a switch; NULL: of a daemon before, not known here yet */
    unsigned missed; /* looks at which it was not known */
};
WS_VECTOR(ws_kept_versions, struct ws_kept_version);

/* Guarded by the control's lock. */
struct ws_adapters {
    size_t n_runs;
    struct ws_adapter_run {
        char lineage[WS_LINEAGE_CHARS + 1];
        uint64_t low, high;
    } runs[WS_ADAPTER_RUNS];
    size_t n_strays;
    struct ws_adapter_stray {
        uint64_t low, high; /* whose shorter names are nobody's */
    } strays[WS_ADAPTER_STRAYS];
    struct ws_kept_versions kept; /* the newest first; without the current version */
};

typedef char ws_adapter_name[WS_ADAPTER_NAME_CHARS + 1];
void ws_adapters_name(const struct ws_adapters *a, const char *model, const struct ws_version_id *id,
                      ws_adapter_name out);
/* The version is about to be loaded: its number becomes its run's, where it can. True: that has changed. */
bool ws_adapters_own(struct ws_adapters *a, const struct ws_version_id *id);
/* Is it a path that a mount gives, of which engines see the mount point as mountpoint? *id: of which version of the model. */
bool ws_adapters_path_is_own(const char *path, const char *mountpoint, const char *model,
                             struct ws_version_id *id);
/* An engine lists a name. from: the version that this mount had it load, without a lineage where the engine does not say; NULL:
 * it is somebody else's. True: it is a stray that was not known before. */
bool ws_adapters_saw(struct ws_adapters *a, const char *model, const char *name,
                     const struct ws_version_id *from);
/* From the settings: LOW HIGH of strays, RUN LOW HIGH. */
WS_MUST_USE bool ws_adapters_read_stray(struct ws_adapters *a, const char *text);
WS_MUST_USE bool ws_adapters_read_run(struct ws_adapters *a, const char *text);
/* Is it a name that a mount gives to versions of the model? */
bool ws_adapters_is_name_of(const char *name, const char *model);

/* Names with commas between, as an engine lists them: is one of them that name; one more, or one less. */
bool ws_adapter_list_has(const char *list, const char *name);
unsigned ws_adapter_list_count(const char *list, const char *model); /* names of that model's */
WS_MUST_USE int ws_adapter_list_add(char **list, const char *name);  /* NULL is empty; -ENOMEM */
void ws_adapter_list_remove(char *list, const char *name);

#endif
