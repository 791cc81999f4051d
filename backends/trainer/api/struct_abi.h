/* Abi: public structs of programs that were built with another release's header. Pure. */
#ifndef WS_TRAINER_API_STRUCT_ABI_H
#define WS_TRAINER_API_STRUCT_ABI_H
#include "transports/base/error.h"
#include <stddef.h>

/* Copies a caller's struct, whose first member is its size_t struct_size, into one of `bytes` bytes. An
 * older, shorter one leaves the rest zero, the default; a newer, longer one may only leave zero what is not
 * known here. given may be NULL. -EINVAL names the struct. */
WS_MUST_USE int ws_struct_abi_copy(void *out, size_t bytes, const void *given, const char *name,
                                   struct ws_error *err);
/* The same of one element of an array, which has no size of its own: given_size is that of all of them. */
WS_MUST_USE int ws_struct_abi_element(void *out, size_t bytes, const void *given, size_t given_size,
                                      const char *name, struct ws_error *err);
/* The other way, after a copy from the same struct: as much of ours, of `bytes` bytes, as the caller's has; what
 * a newer one has more stays. Its struct_size stays. */
void ws_struct_abi_give(void *given, const void *ours, size_t bytes);

#endif
