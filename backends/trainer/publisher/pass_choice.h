/* Pass choice: does the next version go into its slot by a copy, after which the agent compares it with the one before,
 * or by one pass that copies and compares (offload/copy_compare.h)? The pass has the delta ready when the trainer goes on,
 * and holds the trainer up a little longer. Decided by what the caller prefers, by the rates that this process measured,
 * and by how much changes in a step. Pure: state without threads. */
#ifndef WS_TRAINER_PUBLISHER_PASS_CHOICE_H
#define WS_TRAINER_PUBLISHER_PASS_CHOICE_H
#include <stdbool.h>
#include <stdint.h>

enum ws_prefer { WS_PREFER_AUTO, WS_PREFER_STALL, WS_PREFER_LATENCY };
/* NULL: WS_PREFER_AUTO; -EINVAL: none has that name. */
int ws_prefer_parse(const char *name, enum ws_prefer *out);

struct ws_pass_choice {
    double copy, pass; /* seconds a byte, 0: not measured yet */
    double density;    /* of the last pass: changed elements of all */
    unsigned n_dense;  /* versions that were copied since, because of the density or the rates */
};
/* Is the next version to go by a pass? */
bool ws_pass_choice_make(struct ws_pass_choice *c, enum ws_prefer prefer);
/* What was done: bytes in seconds; by a pass: so many of n_elements changed. */
void ws_pass_choice_record_copy(struct ws_pass_choice *c, uint64_t bytes, double seconds);
void ws_pass_choice_record_pass(struct ws_pass_choice *c, uint64_t bytes, double seconds, uint64_t changed,
                                uint64_t n_elements);

#endif
