#include "backends/trainer/agent/fleet/fanout.h"
#include "backends/trainer/agent/fleet/member_heap.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define S          WS_FANOUT_STRIPES
#define SLACK      1 /* children that a mount may have beyond its fan-out */
#define MAX_FACTOR 4 /* by which fan-outs rise where few mounts serve many that do not */
#define MAX_DEEPER 3 /* than a new plan, before that takes the place of what was kept */

#define MAX_TABLES 24

struct plan {
    struct ws_fanout_member *m;
    size_t n;
    size_t *order;    /* by reach, rack, then key */
    size_t *place;    /* of a member in that order */
    unsigned *turn;   /* of a member: which stripe it passes on */
    size_t *children; /* by member and stripe: how many it had before */
    size_t *below;    /* by member and stripe: 1 + the first of them in that order; 0: none */
    size_t *next;     /* by member and stripe: 1 + the next one that was below the same */
    size_t *rack;     /* a member's, numbered: which stripe the rack passes on to others */
    size_t *reach;    /* a member's, numbered */
    bool *rack_has;   /* by rack and stripe: a mount of the rack is attached */
    int *left;        /* of a member's fan-out; down to -SLACK */
    bool entered[S];  /* the agent's one child of that stripe is there */
    /* of the stripe that is being planned */
    unsigned stripe;
    bool inner;             /* of those alone that pass it on */
    size_t *fresh, n_fresh; /* attached, and those that were below it have not been looked at */
    bool chooses;           /* parents are chosen: those that have room are in the heaps */
    struct ws_member_heap *of_rack, *of_reach;
    size_t *entering, n_entering; /* in the order in which they bring the stripe into their racks */
    size_t *rest, n_rest;         /* in the order in which they are attached otherwise */
    uint64_t looks;               /* at members */
    void *tables[MAX_TABLES];     /* what all of these are in */
    unsigned n_tables;
    bool lacks_memory;
};

static int order_by(const struct ws_fanout_member *a, const struct ws_fanout_member *b)
{
    if (a->reach != b->reach)
        return a->reach < b->reach ? -1 : 1;
    if (a->rack != b->rack)
        return a->rack < b->rack ? -1 : 1;
    return a->key < b->key ? -1 : a->key > b->key;
}

static int compare_members(const void *a, const void *b, void *arg)
{
    const struct ws_fanout_member *m = arg;
    return order_by(&m[*(const size_t *)a], &m[*(const size_t *)b]);
}

static int compare_rates(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static bool may_pass_on(const struct ws_fanout_member *m)
{
    return m->serves && !m->is_slow;
}

/* --- fan-outs --- */

/* 0: none has measured its link. */
static uint64_t median_rate(const struct plan *p, uint64_t *scratch)
{
    size_t k = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->m[i].link_rate > 0)
            scratch[k++] = p->m[i].link_rate;
    if (k == 0)
        return 0;
    qsort(scratch, k, sizeof(*scratch), compare_rates);
    return scratch[k / 2];
}

/* Three classes, so that a figure that varies a little changes nothing. */
static unsigned measure(const struct ws_fanout_member *m, uint64_t median)
{
    if (!may_pass_on(m))
        return 0;
    if (median == 0 || m->link_rate == 0)
        return S;
    return m->link_rate < median / 3 ? 1 : m->link_rate > 3 * median ? 2 * S : S;
}

/* Every stripe of every member needs a place; the agent has one of each stripe. */
static void set_fan_outs(struct plan *p, uint64_t median)
{
    const size_t needed = (p->n - 1) * S;
    size_t sum = 0;
    for (size_t i = 0; i < p->n; i++)
        sum += p->m[i].fan_out = measure(&p->m[i], median);
    if (sum == 0 || sum >= needed)
        return;
    const size_t most = needed < MAX_FACTOR * sum ? needed : MAX_FACTOR * sum;
    for (size_t i = 0; i < p->n; i++)
        p->m[i].fan_out = (unsigned)((p->m[i].fan_out * most + sum - 1) / sum);
}

static void set_order(struct plan *p)
{
    size_t rack = 0, reach = 0;
    for (size_t k = 0; k < p->n; k++)
        p->order[k] = k;
    qsort_r(p->order, p->n, sizeof(*p->order), compare_members, p->m);
    for (size_t k = 0; k < p->n; k++) {
        const struct ws_fanout_member *m = &p->m[p->order[k]];
        const struct ws_fanout_member *before = k > 0 ? &p->m[p->order[k - 1]] : m;
        reach += m->reach != before->reach;
        rack += m->rack != before->rack || m->reach != before->reach;
        p->place[p->order[k]] = k;
        p->rack[p->order[k]] = rack;
        p->reach[p->order[k]] = reach;
    }
}

/* A mount goes on with the stripe that it passed on before, so that those that are below it there stay; others take
 * the stripe that has the fewest. */
static void set_turns(struct plan *p, const int *before)
{
    size_t holders[S] = {0};
    memset(p->children, 0, p->n * S * sizeof(*p->children));
    for (size_t k = 0; k < p->n * S; k++)
        if (before[k] >= 0)
            p->children[(size_t)before[k] * S + k % S]++;
    for (size_t i = 0; i < p->n; i++) {
        size_t most = 0;
        p->turn[i] = S;
        for (unsigned s = 0; s < S; s++)
            if (p->children[i * S + s] > most)
                most = p->children[i * S + (p->turn[i] = s)];
        if (p->turn[i] < S)
            holders[p->turn[i]]++;
    }
    for (size_t k = 0; k < p->n; k++) {
        const size_t i = p->order[k];
        if (p->turn[i] < S)
            continue;
        p->turn[i] = 0;
        for (unsigned s = 1; s < S; s++)
            if (holders[s] < holders[p->turn[i]])
                p->turn[i] = s;
        holders[p->turn[i]]++;
    }
}

/* Who was below whom, by stripe. before: S parents a member. */
static void set_below(struct plan *p, const int *before)
{
    memset(p->below, 0, p->n * S * sizeof(*p->below));
    for (size_t k = p->n; k-- > 0;) {
        for (unsigned s = 0; s < S; s++) {
            const size_t at = p->order[k] * S + s;
            if (before[at] < 0)
                continue;
            p->next[at] = p->below[(size_t)before[at] * S + s];
            p->below[(size_t)before[at] * S + s] = p->order[k] + 1;
        }
    }
}

/* --- attaching --- */

static bool is_attached(const struct plan *p, size_t i, unsigned s)
{
    return p->m[i].depth[s] > 0;
}

static bool has_room(const struct plan *p, size_t i, int slack)
{
    return may_pass_on(&p->m[i]) && p->left[i] > -slack;
}

/* Is a a better parent in the stripe than b? Its fan-out comes first; then whose turn it is, which has fewer children of other
 * stripes; then the depth, then the one with more room. crosses: to mounts of other racks. */
static bool is_better(struct plan *p, bool crosses, size_t a, size_t b)
{
    const unsigned s = p->stripe;
    p->looks++;
    if ((p->left[a] > 0) != (p->left[b] > 0))
        return p->left[a] > 0;
    const bool a_turn = p->turn[a] == s && (!crosses || p->rack[a] % S == s);
    const bool b_turn = p->turn[b] == s && (!crosses || p->rack[b] % S == s);
    if (a_turn != b_turn)
        return a_turn;
    if (p->m[a].depth[s] != p->m[b].depth[s])
        return p->m[a].depth[s] < p->m[b].depth[s];
    if (p->left[a] != p->left[b])
        return p->left[a] > p->left[b];
    return p->place[a] < p->place[b];
}

static bool is_better_in_rack(void *arg, size_t a, size_t b)
{
    return is_better(arg, false, a, b);
}

static bool is_better_across(void *arg, size_t a, size_t b)
{
    return is_better(arg, true, a, b);
}

/* The member may be chosen as a parent from now on, if it has room. */
static void offer(struct plan *p, size_t i)
{
    if (!has_room(p, i, SLACK))
        return;
    ws_member_heap_add(&p->of_rack[p->rack[i]], i);
    ws_member_heap_add(&p->of_reach[p->reach[i]], i);
}

/* The member, which is offered, has a child more. */
static void charge(struct plan *p, size_t i)
{
    void (*change)(struct ws_member_heap *, size_t) =
        has_room(p, i, SLACK) ? ws_member_heap_worse : ws_member_heap_remove;
    change(&p->of_rack[p->rack[i]], i);
    change(&p->of_reach[p->reach[i]], i);
}

static void attach(struct plan *p, size_t i, int parent)
{
    struct ws_fanout_member *m = &p->m[i];
    const unsigned s = p->stripe;
    m->parent[s] = parent;
    m->depth[s] = parent == WS_FANOUT_AGENT ? 1 : p->m[parent].depth[s] + 1;
    p->rack_has[p->rack[i] * S + s] = true;
    p->fresh[p->n_fresh++] = i;
    if (parent == WS_FANOUT_AGENT)
        p->entered[s] = true;
    else
        p->left[parent]--;
    if (p->chooses && parent != WS_FANOUT_AGENT)
        charge(p, (size_t)parent);
    if (p->chooses)
        offer(p, i);
}

/* Its own rack comes first. The agent, where it has no child of the stripe yet; and where no mount has room. */
static int choose_parent(const struct plan *p, size_t i)
{
    const struct ws_member_heap *rack = &p->of_rack[p->rack[i]], *reach = &p->of_reach[p->reach[i]];
    if (!p->entered[p->stripe])
        return WS_FANOUT_AGENT;
    return rack->n > 0 ? (int)rack->members[0] : reach->n > 0 ? (int)reach->members[0] : WS_FANOUT_AGENT;
}

/* Does it pass the stripe on, or is it to? Those that do are attached first, so that they are near the top: a mount
 * that passes nothing on makes room, which moves nobody but itself. */
static bool is_inner(const struct plan *p, size_t i)
{
    const unsigned s = p->stripe;
    return may_pass_on(&p->m[i]) && (p->children[i * S + s] > 0 || (p->turn[i] == s && p->left[i] > 0));
}

/* Is it to be attached in the stripe now? */
static bool is_due(const struct plan *p, size_t i)
{
    return !is_attached(p, i, p->stripe) && (!p->inner || is_inner(p, i));
}

/* A mount that had one child too many before keeps it: only another plan could be better. */
static int slack_of(const struct plan *p, size_t i)
{
    size_t had = 0;
    for (unsigned s = 0; s < S; s++)
        had += p->children[i * S + s];
    return had > p->m[i].fan_out ? SLACK : 0;
}

/* Keeps the edges of before that are possible below what was attached. */
static void keep_below(struct plan *p)
{
    const unsigned s = p->stripe;
    while (p->n_fresh > 0) {
        const size_t parent = p->fresh[--p->n_fresh];
        for (size_t i, k = p->below[parent * S + s]; k > 0; k = p->next[i * S + s]) {
            i = k - 1;
            p->looks++;
            if (is_due(p, i) && has_room(p, parent, slack_of(p, parent)) &&
                p->m[parent].reach == p->m[i].reach)
                attach(p, i, (int)parent);
        }
    }
}

/* The edges of before that are possible, from the agent down. before: parents, S a member. */
static void keep(struct plan *p, const int *before)
{
    for (size_t k = 0; k < p->n; k++) {
        const size_t i = p->order[k];
        if (is_attached(p, i, p->stripe))
            p->fresh[p->n_fresh++] = i; /* by those that pass the stripe on: now others come below it */
        else if (!p->entered[p->stripe] && before[i * S + p->stripe] == WS_FANOUT_AGENT &&
                 may_pass_on(&p->m[i]) && is_due(p, i) && (!p->inner || p->turn[i] == p->stripe))
            attach(p, i, WS_FANOUT_AGENT);
    }
    keep_below(p);
}

/* In which order members are attached: those first that pass the stripe on, of racks that pass it on before others,
 * where the rack has nothing of it yet (enters); then by what they have left for children, so that room is there. What a member
 * that is not attached has left does not change. */
static unsigned rank_of(const struct plan *p, size_t i, bool enters)
{
    const unsigned s = p->stripe;
    const bool passes = may_pass_on(&p->m[i]) && p->left[i] > 0, turn = passes && p->turn[i] == s;
    if (enters)
        return (p->rack[i] % S == s ? 0 : 2) + (turn ? 0 : 1);
    return turn ? 4 : passes ? 5 : may_pass_on(&p->m[i]) ? 6 : 7;
}

static int compare_ranks(struct plan *p, size_t a, size_t b, bool enters)
{
    const unsigned x = rank_of(p, a, enters), y = rank_of(p, b, enters);
    p->looks++;
    if (x != y)
        return x < y ? -1 : 1;
    if (p->left[a] != p->left[b])
        return p->left[a] > p->left[b] ? -1 : 1;
    return p->place[a] < p->place[b] ? -1 : p->place[a] > p->place[b];
}

static int compare_entering(const void *a, const void *b, void *arg)
{
    return compare_ranks(arg, *(const size_t *)a, *(const size_t *)b, true);
}

static int compare_rest(const void *a, const void *b, void *arg)
{
    return compare_ranks(arg, *(const size_t *)a, *(const size_t *)b, false);
}

/* Begins to choose parents in the stripe: who has room, and who is next. */
static void begin_choosing(struct plan *p)
{
    p->n_entering = p->n_rest = 0;
    for (size_t k = 0; k < p->n; k++) {
        const size_t i = p->order[k];
        p->of_rack[p->rack[i]].n = p->of_reach[p->reach[i]].n = 0;
        if (!is_due(p, i))
            continue;
        p->rest[p->n_rest++] = i;
        if (may_pass_on(&p->m[i]) && p->left[i] > 0)
            p->entering[p->n_entering++] = i;
    }
    for (size_t i = 0; i < p->n; i++)
        if (is_attached(p, i, p->stripe))
            offer(p, i);
    qsort_r(p->entering, p->n_entering, sizeof(*p->entering), compare_entering, p);
    qsort_r(p->rest, p->n_rest, sizeof(*p->rest), compare_rest, p);
    p->chooses = true;
}

/* The agent's child of a stripe is lost, and i takes its place: those that were below the lost one and have children
 * come below i before its own children do. Else they would end up far down, with all that is below them. */
static void adopt(struct plan *p, size_t i, const int *before)
{
    const unsigned s = p->stripe;
    for (size_t k = 0; k < p->n && p->left[i] > 0; k++) {
        const size_t orphan = p->order[k];
        const int parent = before[orphan * S + s];
        p->looks++;
        if (!is_attached(p, orphan, s) && p->children[orphan * S + s] > 0 && may_pass_on(&p->m[orphan]) &&
            (parent < 0 || !may_pass_on(&p->m[parent])) && p->m[orphan].reach == p->m[i].reach)
            attach(p, orphan, (int)i);
    }
}

static void attach_next(struct plan *p, size_t i, const int *before)
{
    const int parent = choose_parent(p, i);
    attach(p, i, parent);
    if (parent == WS_FANOUT_AGENT)
        adopt(p, i, before);
    keep_below(p);
}

static void attach_rest(struct plan *p, const int *before)
{
    const unsigned s = p->stripe;
    begin_choosing(p);
    for (size_t k = 0; k < p->n_entering; k++)
        if (!is_attached(p, p->entering[k], s) && !p->rack_has[p->rack[p->entering[k]] * S + s])
            attach_next(p, p->entering[k], before);
    for (size_t k = 0; k < p->n_rest; k++)
        if (!is_attached(p, p->rest[k], s))
            attach_next(p, p->rest[k], before);
    p->chooses = false;
}

static void make(struct plan *p, const int *before)
{
    memset(p->entered, 0, sizeof(p->entered));
    memset(p->rack_has, 0, p->n * S * sizeof(*p->rack_has));
    set_turns(p, before);
    set_below(p, before);
    for (size_t i = 0; i < p->n; i++) {
        p->left[i] = (int)p->m[i].fan_out;
        for (unsigned s = 0; s < S; s++) {
            p->m[i].parent[s] = WS_FANOUT_NONE;
            p->m[i].depth[s] = 0;
        }
    }
    for (int inner = 1; inner >= 0; inner--) {
        p->inner = inner;
        for (p->stripe = 0; p->stripe < S; p->stripe++)
            keep(p, before);
        for (p->stripe = 0; p->stripe < S; p->stripe++)
            attach_rest(p, before);
    }
}

/* --- what was kept, compared with a new plan --- */

struct shape {
    unsigned depth;         /* of the deepest */
    size_t crossing, agent; /* edges between racks, and to the agent */
};

static struct shape shape_of(const struct plan *p)
{
    struct shape shape = {0};
    for (size_t i = 0; i < p->n; i++) {
        for (unsigned s = 0; s < S; s++) {
            const int parent = p->m[i].parent[s];
            shape.depth = p->m[i].depth[s] > shape.depth ? p->m[i].depth[s] : shape.depth;
            shape.agent += parent == WS_FANOUT_AGENT;
            shape.crossing += parent != WS_FANOUT_AGENT && p->m[parent].rack != p->m[i].rack;
        }
    }
    return shape;
}

static bool is_clearly_worse(const struct shape *kept, const struct shape *anew, size_t n)
{
    return kept->depth > anew->depth + MAX_DEEPER || kept->agent > anew->agent ||
           kept->crossing > anew->crossing + S + n / 8;
}

/* The better one of what keeps the edges of before and a plan without any. none, kept: S parents a member. */
static void plan_both(struct plan *p, const int *before, int *none, struct ws_fanout_member *kept)
{
    for (size_t i = 0; i < p->n * S; i++)
        none[i] = WS_FANOUT_NONE;
    make(p, before);
    const struct shape of_kept = shape_of(p);
    memcpy(kept, p->m, p->n * sizeof(*kept));
    make(p, none);
    const struct shape of_new = shape_of(p);
    if (!is_clearly_worse(&of_kept, &of_new, p->n))
        memcpy(p->m, kept, p->n * sizeof(*kept));
}

/* Freed with the plan. */
static void *table(struct plan *p, size_t n, size_t size)
{
    assert(p->n_tables < MAX_TABLES);
    void *t = p->tables[p->n_tables++] = calloc(n, size);
    p->lacks_memory = p->lacks_memory || !t;
    return t;
}

/* A heap for each rack, and for each reach: together they have as much room as there are members. */
static void make_heaps(struct plan *p)
{
    size_t *in_rack = table(p, p->n, sizeof(size_t)), *in_reach = table(p, p->n, sizeof(size_t));
    size_t *place_in_rack = table(p, p->n, sizeof(size_t)), *place_in_reach = table(p, p->n, sizeof(size_t));
    p->of_rack = table(p, p->n, sizeof(*p->of_rack));
    p->of_reach = table(p, p->n, sizeof(*p->of_reach));
    for (size_t k = p->n; k-- > 0 && !p->lacks_memory;) {
        const size_t i = p->order[k];
        p->of_rack[p->rack[i]] = (struct ws_member_heap){
            .members = in_rack + k, .place = place_in_rack, .is_better = is_better_in_rack, .arg = p};
        p->of_reach[p->reach[i]] = (struct ws_member_heap){
            .members = in_reach + k, .place = place_in_reach, .is_better = is_better_across, .arg = p};
    }
}

static void make_tables(struct plan *p)
{
    p->order = table(p, p->n, sizeof(*p->order));
    p->place = table(p, p->n, sizeof(*p->place));
    p->turn = table(p, p->n, sizeof(*p->turn));
    p->children = table(p, p->n * S, sizeof(*p->children));
    p->below = table(p, p->n * S, sizeof(*p->below));
    p->next = table(p, p->n * S, sizeof(*p->next));
    p->rack = table(p, p->n, sizeof(*p->rack));
    p->reach = table(p, p->n, sizeof(*p->reach));
    p->rack_has = table(p, p->n * S, sizeof(*p->rack_has));
    p->left = table(p, p->n, sizeof(*p->left));
    p->fresh = table(p, p->n, sizeof(*p->fresh));
    p->entering = table(p, p->n, sizeof(*p->entering));
    p->rest = table(p, p->n, sizeof(*p->rest));
}

int ws_fanout_plan(struct ws_fanout_member *m, size_t n, uint64_t *looks)
{
    struct plan p = {.m = m, .n = n};
    *looks = 0;
    if (n == 0)
        return 0;
    make_tables(&p);
    uint64_t *rates = table(&p, n, sizeof(*rates));
    int *before = table(&p, n * S, sizeof(*before)), *none = table(&p, n * S, sizeof(*none));
    struct ws_fanout_member *kept = table(&p, n, sizeof(*kept));
    if (!p.lacks_memory)
        set_order(&p);
    make_heaps(&p);
    if (!p.lacks_memory) {
        for (size_t i = 0; i < n; i++)
            for (unsigned s = 0; s < S; s++)
                before[i * S + s] = m[i].parent[s];
        set_fan_outs(&p, median_rate(&p, rates));
        plan_both(&p, before, none, kept);
    }
    for (unsigned i = 0; i < p.n_tables; i++)
        free(p.tables[i]);
    *looks = p.looks;
    return p.lacks_memory ? -ENOMEM : 0;
}
