/* Vector: an array that grows, of one type of item. WS_VECTOR(NAME, TYPE) makes `struct NAME`, whose fields are
 * read as they are, and the functions that change it (the idea is nbdkit's vector):
 *
 *     WS_VECTOR(shards, struct shard);
 *
 *     struct shards list = {0};                              empty: all zero, no memory
 *     rc = shards_append(&list, (struct shard){.fd = fd});   0, -ENOMEM
 *     for (size_t i = 0; i < list.len; i++)
 *         use(&list.ptr[i]);
 *     shards_reset(&list);                                   frees the array, not what its items own
 *
 *     int NAME_reserve(v, more)               room for `more` items after those that are there: 0, -ENOMEM
 *     int NAME_append(v, item)                at the end: 0, -ENOMEM
 *     int NAME_append_most(v, item, most)     the same, but -E2BIG where `most` items are there: nothing is added
 *     int NAME_append_all(v, items, n)        n items, copied; they are not the vector's own: 0, -ENOMEM
 *     int NAME_insert(v, item, at)            before the item at `at`; at len: at the end: 0, -ENOMEM
 *     void NAME_remove(v, at)                 what follows moves up
 *     void NAME_reset(v)                      empty again, without memory
 *
 * A failure changes nothing. Room doubles, so n appends move the items log n times at most. After any call that may
 * grow the vector, pointers to its items are stale. `ptr` is malloc's: a caller may hand the array to another owner,
 * who frees it. One thread at a time. */
#ifndef WS_TRANSPORTS_BASE_VECTOR_H
#define WS_TRANSPORTS_BASE_VECTOR_H
#include "transports/base/error.h"
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* An array with room for `more` items beyond `len`, moved if need be; *cap is what it has room for then. NULL:
 * no memory, or no size_t counts so many bytes; array and *cap stay. Of the functions below only. */
WS_MUST_USE void *ws_vector_grow(void *array, size_t *cap, size_t len, size_t more, size_t item_bytes);

/* For an array in a structure that keeps only how many items it has, n: room for one more, moved if need be. What it
 * has room for follows from n, the smallest power of two that is not less. NULL: no memory; the array stays. */
WS_MUST_USE void *ws_vector_room(void *array, size_t n, size_t item_bytes);

#define WS_VECTOR(name, type)                                                                                \
    struct name {                                                                                            \
        type *ptr;                                                                                           \
        size_t len, cap;                                                                                     \
    };                                                                                                       \
    __attribute__((unused)) WS_MUST_USE static inline int name##_reserve(struct name *v, size_t more)        \
    {                                                                                                        \
        type *grown;                                                                                         \
        assert(v->len <= v->cap);                                                                            \
        if (more <= v->cap - v->len)                                                                         \
            return 0;                                                                                        \
        grown = ws_vector_grow(v->ptr, &v->cap, v->len, more, sizeof(type));                                 \
        if (!grown)                                                                                          \
            return -ENOMEM;                                                                                  \
        v->ptr = grown;                                                                                      \
        return 0;                                                                                            \
    }                                                                                                        \
    __attribute__((unused)) WS_MUST_USE static inline int name##_append(struct name *v, type item)           \
    {                                                                                                        \
        int rc = name##_reserve(v, 1);                                                                       \
        if (rc == 0)                                                                                         \
            v->ptr[v->len++] = item;                                                                         \
        return rc;                                                                                           \
    }                                                                                                        \
    __attribute__((unused))                                                                                  \
    WS_MUST_USE static inline int name##_append_most(struct name *v, type item, size_t most)                 \
    {                                                                                                        \
        return v->len < most ? name##_append(v, item) : -E2BIG;                                              \
    }                                                                                                        \
    __attribute__((unused))                                                                                  \
    WS_MUST_USE static inline int name##_append_all(struct name *v, const type *items, size_t n)             \
    {                                                                                                        \
        int rc = name##_reserve(v, n);                                                                       \
        if (rc == 0 && n > 0)                                                                                \
            memcpy(v->ptr + v->len, items, n * sizeof(type));                                                \
        v->len += rc == 0 ? n : 0;                                                                           \
        return rc;                                                                                           \
    }                                                                                                        \
    __attribute__((unused))                                                                                  \
    WS_MUST_USE static inline int name##_insert(struct name *v, type item, size_t at)                        \
    {                                                                                                        \
        int rc = name##_reserve(v, 1);                                                                       \
        assert(at <= v->len);                                                                                \
        if (rc < 0)                                                                                          \
            return rc;                                                                                       \
        memmove(v->ptr + at + 1, v->ptr + at, (v->len - at) * sizeof(type));                                 \
        v->ptr[at] = item;                                                                                   \
        v->len++;                                                                                            \
        return 0;                                                                                            \
    }                                                                                                        \
    __attribute__((unused)) static inline void name##_remove(struct name *v, size_t at)                      \
    {                                                                                                        \
        assert(at < v->len);                                                                                 \
        v->len--;                                                                                            \
        memmove(v->ptr + at, v->ptr + at + 1, (v->len - at) * sizeof(type));                                 \
    }                                                                                                        \
    __attribute__((unused)) static inline void name##_reset(struct name *v)                                  \
    {                                                                                                        \
        free(v->ptr);                                                                                        \
        *v = (struct name){0};                                                                               \
    }                                                                                                        \
    struct name

WS_VECTOR(ws_bytes, char);

#endif
