/* Secret memory: where tokens and keys lie. Its pages hold nothing else and are in no core dump (MADV_DONTDUMP), and
 * it is gone when it is freed: wiped, or unmapped where it is large. As malloc's otherwise, with functions of its own:
 * what comes from here is not given to free(). Any thread. */
#ifndef WS_TRANSPORTS_BASE_SECRET_H
#define WS_TRANSPORTS_BASE_SECRET_H
#include <stddef.h>

/* NULL: no memory. */
void *ws_secret_alloc(size_t n);
void *ws_secret_zeroed(size_t n, size_t each);
void *ws_secret_resize(void *memory,
                       size_t n);       /* moved if need be; NULL: no memory, and the old block stays */
char *ws_secret_copy(const char *text); /* of NULL: NULL */
void ws_secret_free(void *memory);      /* NULL is fine */

/* For what a library keeps in memory of its own: the pages where it lies are in no core dump from now on. */
void ws_secret_hide(const void *bytes, size_t n);
/* What is above does not cover registers, nor what they leave on stacks, nor the libraries of TLS, which keep keys as
 * numbers and parts of what they encrypt where they cannot be found. So a daemon that has a secret calls this, too: it
 * leaves no core dump from now on, and processes of its user cannot look into it; root's debugger can. */
void ws_secret_leave_no_core(void);

#endif
