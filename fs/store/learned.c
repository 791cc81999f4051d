#include "fs/store/learned.h"
#include "fs/store/content.h"
#include "fs/store/wants.h"
#include "transports/base/log.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_ROOM 64
/* How far a model is, in text. */
#define LEARNED    "learned"
#define LEARNS     "learns"
#define LOOKED     "looked-at" /* nothing was read of it for certain */

struct ws_learned {
    struct ws_learned *next; /* guarded by store->lock */
    char *model;
    pthread_mutex_t lock; /* a version's header_lock is taken with it, no other */
    /* guarded by lock */
    char **names; /* a hash table with room for a power of two; NULL: empty */
    size_t n, room;
    uint64_t last_ns; /* when one was read for certain that was not known; 0: none was */
    bool is_over;
    uint64_t n_changes;
};

/* Tensors of a file in the order of their bytes. */
struct ws_tensor_order {
    size_t n;
    const struct ws_tensor *tensors[];
};

/* --- names; with l->lock --- */

/* Where the name is, or would be. */
static char **find_place(char **names, size_t room, const char *name)
{
    size_t i = (size_t)ws_hash(name, strlen(name)) & (room - 1);

    while (names[i] && strcmp(names[i], name) != 0)
        i = (i + 1) & (room - 1);
    return &names[i];
}

static bool has(const struct ws_learned *l, const char *name)
{
    return l->n > 0 && *find_place(l->names, l->room, name);
}

static bool grow(struct ws_learned *l)
{
    const size_t room = l->room ? 2 * l->room : LEAST_ROOM;
    char **names = calloc(room, sizeof(*names));

    if (!names)
        return false;
    for (size_t i = 0; i < l->room; i++)
        if (l->names[i])
            *find_place(names, room, l->names[i]) = l->names[i];
    free(l->names);
    l->names = names;
    l->room = room;
    return true;
}

/* False: it is known, or there is no memory, and then it is learned another time. */
static bool add(struct ws_learned *l, const char *name)
{
    char *copy;

    if (has(l, name) || l->n >= WS_MAX_TENSORS || (2 * (l->n + 1) > l->room && !grow(l)) ||
        !(copy = strdup(name)))
        return false;
    *find_place(l->names, l->room, name) = copy;
    l->n++;
    l->n_changes++;
    return true;
}

static void forget(struct ws_learned *l)
{
    for (size_t i = 0; i < l->room; i++)
        free(l->names[i]);
    free(l->names);
    l->names = NULL;
    l->n = l->room = 0;
    l->last_ns = 0;
    l->is_over = false;
    l->n_changes++;
}

static void end_learning(struct ws_learned *l)
{
    if (l->is_over || l->n == 0)
        return;
    l->is_over = true;
    l->n_changes++;
    ws_log(WS_LOG_INFO, "store", "what is read was learned model=%s tensors=%zu", l->model, l->n);
}

static void end_when_quiet(struct ws_learned *l)
{
    if (l->last_ns && ws_clock_ns() - l->last_ns >= WS_LEARNED_QUIET_NS)
        end_learning(l);
}

/* --- the store's --- */

static struct ws_learned *find(const struct ws_store *s, const char *model)
{
    struct ws_learned *l = s->learned;

    while (l && strcmp(l->model, model) != 0)
        l = l->next;
    return l;
}

struct ws_learned *ws_learned_get(struct ws_store *s, const char *model)
{
    struct ws_learned *l = find(s, model);

    if (l)
        return l;
    l = calloc(1, sizeof(*l));
    if (!l || !(l->model = strdup(model))) {
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    l->next = s->learned;
    s->learned = l;
    return l;
}

void ws_learned_free_all(struct ws_store *s)
{
    while (s->learned) {
        struct ws_learned *l = s->learned;
        s->learned = l->next;
        forget(l);
        pthread_mutex_destroy(&l->lock);
        free(l->model);
        free(l);
    }
}

bool ws_model_learns(const struct ws_model *m)
{
    return m->learned;
}

bool ws_model_learned(struct ws_model *m, struct ws_learned_info *out)
{
    struct ws_learned *l = m->learned;

    if (!l)
        return false;
    pthread_mutex_lock(&l->lock);
    end_when_quiet(l);
    *out = (struct ws_learned_info){.n_tensors = l->n, .is_over = l->is_over};
    pthread_mutex_unlock(&l->lock);
    return true;
}

void ws_model_learn_end(struct ws_model *m, bool asked)
{
    struct ws_learned *l = m->learned;

    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    if (asked || l->last_ns)
        end_learning(l);
    pthread_mutex_unlock(&l->lock);
}

void ws_model_learn_again(struct ws_model *m)
{
    struct ws_learned *l = m->learned;

    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    forget(l);
    pthread_mutex_unlock(&l->lock);
}

/* --- what is read --- */

static int compare_begins(const void *a, const void *b)
{
    const struct ws_tensor *s = *(const struct ws_tensor *const *)a, *t = *(const struct ws_tensor *const *)b;

    return s->begin != t->begin ? (s->begin < t->begin ? -1 : 1) : (s->end > t->end) - (s->end < t->end);
}

/* NULL: the header is not here, or no memory. */
static const struct ws_tensor_order *get_order(struct ws_version *v, size_t file)
{
    struct ws_file_state *f = &v->files[file];
    struct ws_tensor_order *order = atomic_load_explicit(&f->order, memory_order_acquire);
    const struct ws_safetensors *st = order ? NULL : ws_version_header(v, file, NULL);

    if (!st)
        return order;
    pthread_mutex_lock(&v->header_lock);
    order = atomic_load(&f->order);
    if (!order && (order = malloc(sizeof(*order) + st->n_tensors * sizeof(*order->tensors)))) {
        order->n = st->n_tensors;
        for (size_t i = 0; i < st->n_tensors; i++)
            order->tensors[i] = &st->tensors[i];
        qsort(order->tensors, order->n, sizeof(*order->tensors), compare_begins);
        atomic_store_explicit(&f->order, order, memory_order_release);
    }
    pthread_mutex_unlock(&v->header_lock);
    return order;
}

/* The first one that ends behind the byte. */
static size_t first_behind(const struct ws_tensor_order *o, uint64_t at)
{
    size_t low = 0, high = o->n;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (o->tensors[middle]->end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void ws_version_was_read(struct ws_version *v, size_t file, uint64_t at, uint64_t n)
{
    struct ws_learned *l = v->model->learned;
    const struct ws_tensor_order *o = l ? get_order(v, file) : NULL;

    if (!o)
        return;
    pthread_mutex_lock(&l->lock);
    for (size_t i = first_behind(o, at); i < o->n && o->tensors[i]->begin < at + n; i++) {
        const struct ws_tensor *t = o->tensors[i];
        const bool is_short = t->end - t->begin <= 2 * WS_LEARNED_AHEAD;
        const bool is_inside = at < t->end - WS_LEARNED_AHEAD && at + n > t->begin + WS_LEARNED_AHEAD;
        if ((is_short || is_inside) && add(l, t->name) && !is_short)
            l->last_ns = ws_clock_ns();
    }
    pthread_mutex_unlock(&l->lock);
}

/* --- what comes --- */

/* With what the kernel reads ahead of its bytes: each reader of the tensor would have it fetched. */
static void add_tensor(struct ws_block_set *w, const struct ws_manifest *m, size_t file,
                       const struct ws_tensor *t)
{
    const struct ws_manifest_file *f = &m->files[file];
    const uint64_t begin = t->begin > WS_LEARNED_AHEAD ? t->begin - WS_LEARNED_AHEAD : 0;
    const uint64_t end =
        f->size_bytes - t->end > WS_LEARNED_AHEAD ? t->end + WS_LEARNED_AHEAD : f->size_bytes;

    ws_block_set_add(w, m, file, (size_t)(begin / WS_BLOCK_BYTES), (size_t)((end - 1) / WS_BLOCK_BYTES) + 1);
}

/* *knows: all tensors of the version are learned. False: a header is not here, or none of its tensors is learned. With
 * l->lock. */
static bool add_known(const struct ws_learned *l, struct ws_version *v, struct ws_block_set *w, bool *knows)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    bool any = false;

    *knows = true;
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_manifest_file *f = &m->files[i];
        const struct ws_safetensors *st = f->header_bytes ? ws_version_header(v, i, NULL) : NULL;
        if (f->header_bytes && !st)
            return false;
        ws_block_set_add(w, m, i, 0, st ? ws_content_header_blocks(f) : f->n_blocks);
        for (size_t k = 0; st && k < st->n_tensors; k++) {
            const struct ws_tensor *t = &st->tensors[k];
            if (t->end == t->begin)
                continue;
            if (has(l, t->name))
                add_tensor(w, m, i, t);
            any = any || has(l, t->name);
            *knows = *knows && has(l, t->name);
        }
    }
    return any;
}

void ws_learned_choose(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_learned *l = v->model->learned;
    bool knows = false, some = false;

    if (!l || atomic_load(&v->wanted) || ws_version_is_known(v)) /* a pull before has chosen */
        return;
    struct ws_block_set *w = ws_block_set_new(m);
    if (!w)
        return;
    pthread_mutex_lock(&l->lock);
    end_when_quiet(l);
    some = l->is_over && add_known(l, v, w, &knows);
    pthread_mutex_unlock(&l->lock);
    if (some && knows)
        atomic_store(&v->is_known, true);
    if (some && !knows && w->bytes < m->total_bytes) {
        atomic_store_explicit(&v->wanted, w, memory_order_release);
        w = NULL;
    }
    ws_block_set_free(w);
}

bool ws_version_is_known(const struct ws_version *v)
{
    return atomic_load(&v->is_known);
}

/* --- as text: each name in the order of strcmp, by how many of its first characters are those of the one before --- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A line holds any name: control characters and % are %XX. */
static void print_name(const char *name, const char *before, FILE *f)
{
    size_t same = 0;

    while (name[same] && name[same] == before[same])
        same++;
    fprintf(f, "%zu ", same);
    for (const char *c = name + same; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == '%' || *c == 127)
            fprintf(f, "%%%02X", (unsigned char)*c);
        else
            fputc(*c, f);
    }
    fputc('\n', f);
}

static int print(struct ws_learned *l, FILE *f)
{
    int rc = 0;

    pthread_mutex_lock(&l->lock);
    char **sorted = calloc(l->n + 1, sizeof(*sorted));
    size_t n = 0;
    for (size_t i = 0; sorted && i < l->room; i++)
        if (l->names[i])
            sorted[n++] = l->names[i];
    if (sorted) {
        qsort(sorted, n, sizeof(*sorted), compare_names);
        fprintf(f, "model %s %s\n", l->is_over ? LEARNED : l->last_ns ? LEARNS : LOOKED, l->model);
        for (size_t i = 0; i < n; i++)
            print_name(sorted[i], i ? sorted[i - 1] : "", f);
    } else {
        rc = -ENOMEM;
    }
    pthread_mutex_unlock(&l->lock);
    free(sorted);
    return rc;
}

uint64_t ws_store_learned_changes(struct ws_store *s)
{
    uint64_t n = 0;

    pthread_mutex_lock(&s->lock);
    struct ws_learned *first = s->learned; /* only ever added to, before it */
    pthread_mutex_unlock(&s->lock);
    for (struct ws_learned *l = first; l; l = l->next) {
        pthread_mutex_lock(&l->lock);
        end_when_quiet(l);
        n += l->n_changes;
        pthread_mutex_unlock(&l->lock);
    }
    return n;
}

int ws_store_learned_print(struct ws_store *s, FILE *f)
{
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    struct ws_learned *first = s->learned;
    pthread_mutex_unlock(&s->lock);
    for (struct ws_learned *l = first; l && rc == 0; l = l->next)
        rc = print(l, f);
    return rc;
}

/* Of "SAME REST": makes the name out of the one before, in place. False: that is no such line. */
static bool read_name(const char *line, char name[WS_MAX_TENSOR_NAME + 1])
{
    char *rest;
    const unsigned long same = strtoul(line, &rest, 10);
    size_t n = same;

    if (rest == line || *rest++ != ' ' || same > strlen(name))
        return false;
    for (; *rest && n < WS_MAX_TENSOR_NAME; rest++) {
        if (*rest == '%') {
            const char digits[3] = {rest[1], rest[1] ? rest[2] : '\0', '\0'};
            char *end;
            const unsigned long code = strtoul(digits, &end, 16);
            if (end != digits + 2 || !code)
                return false;
            name[n++] = (char)code;
            rest += 2;
        } else {
            name[n++] = *rest;
        }
    }
    name[n] = '\0';
    return n > 0 && !*rest;
}

/* "model HOW NAME". NULL: it is no such line, or no memory. */
static struct ws_learned *read_model(struct ws_store *s, const char *line)
{
    static const char *const words[] = {LEARNED, LEARNS, LOOKED};
    struct ws_learned *l = NULL;

    if (strncmp(line, "model ", strlen("model ")) != 0)
        return NULL;
    line += strlen("model ");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && !l; i++) {
        const size_t n = strlen(words[i]);
        if (strncmp(line, words[i], n) != 0 || line[n] != ' ')
            continue;
        pthread_mutex_lock(&s->lock);
        l = ws_learned_get(s, line + n + 1);
        pthread_mutex_unlock(&s->lock);
        if (l) {
            l->is_over = words[i] == words[0];
            l->last_ns = words[i] == words[1] ? ws_clock_ns() : 0; /* when that was is not known */
        }
    }
    return l;
}

int ws_store_learned_read(struct ws_store *s, char *text, struct ws_error *err)
{
    char name[WS_MAX_TENSOR_NAME + 1] = "", *save = NULL;
    struct ws_learned *l = NULL, *next;
    unsigned line = 0;

    for (char *at = strtok_r(text, "\n", &save); at; at = strtok_r(NULL, "\n", &save)) {
        line++;
        if ((next = read_model(s, at))) {
            l = next;
            name[0] = '\0';
        } else if (l && read_name(at, name)) {
            (void)add(l, name);
        } else {
            return ws_error_set(err, EBADMSG, "line %u is not understood", line);
        }
    }
    return 0;
}
