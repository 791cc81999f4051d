/* Life: what the daemons of one mount, each of which took over from one that died (fs/supervisor.h), know of each other. It is memory that
 * they share with their supervisor, so it holds no pointers, and what a daemon that dies in the middle of a change leaves is one number.
 *
 * The kernel has begun to talk with the first of them, and begins with no other: a successor is given the first one's INIT again, and its
 * answer is kept from the kernel. Requests that the dead daemon has read are sent once more (FUSE_NOTIFY_RESEND, Linux 6.9).
 *
 * A successor goes on with the numbers that those before it gave, as the kernel still knows some. Models alone keep
 * theirs, since a folder of one may be bind mounted elsewhere. Handles of open files say whose they are: of a former daemon's they lead
 * nowhere, and are errors to read, but for files that the kernel reads itself. */
#ifndef WS_FS_FUSE_LIFE_H
#define WS_FS_FUSE_LIFE_H
#include "transports/base/error.h"
#include "transports/base/version_id.h"
#include <stdbool.h>
#include <stdint.h>

struct fuse_session;
struct ws_life;

#define WS_LIVES 60000 /* daemons of one mount */

/* Its layout, the kinds of inodes and what a supervisor and its daemons say to each other: one that has another number takes no mount over. */
#define WS_LIFE_WIRE 1

/* Shared with all processes that are forked from here on, and with those that are given *fd, the caller's. NULL: no memory. */
struct ws_life *ws_life_new(int *fd);
struct ws_life *ws_life_open(int fd); /* NULL: it is not one, or no memory */
void ws_life_free(struct ws_life *l);
/* Of all these NULL is a mount without a supervisor. */

/* The supervisor, before it starts a daemon. False: there were WS_LIVES. */
bool ws_life_next(struct ws_life *l);
/* 0: of the first daemon. */
unsigned ws_life_number(const struct ws_life *l);

/* The daemon, before the session's loop: it reads and writes for libfuse. -errno. */
WS_MUST_USE int ws_life_attach(struct ws_life *l, struct fuse_session *session);

/* Has this daemon been about to answer the first one's INIT otherwise than that? Then its session has ended: the kernel goes by the first answer. */
bool ws_life_differs(void);
/* Does a worker of this daemon's wait for a request, or has one begun to since *seen, which is brought up to date, or has none ever? Else all
 * of them hang. */
bool ws_life_reads(uint64_t *seen);

/* What the kernel passes through: its numbers are the connection's, and count upwards. */
void ws_life_passes(struct ws_life *l, int id);
/* The highest number of former daemons, when this one began; 0: there is none. */
int ws_life_former_passed(void);

/* What the next number of a model or version comes after, and the number of the last look-up of a file that takes commands: of all
 * lives. NULL without a life. */
uint64_t *ws_life_last_id(struct ws_life *l);
_Atomic uint64_t *ws_life_last_lookup(struct ws_life *l);
/* The first number of this life for side files. */
uint64_t ws_life_first_side_id(const struct ws_life *l);
/* Versions of all lives, the last ones: which one has, or had, that number. False: it is not known. With a lock of the caller's. */
void ws_life_add_version(struct ws_life *l, uint64_t id, uint64_t model_id,
                         const struct ws_version_id *version);
bool ws_life_find_version(const struct ws_life *l, uint64_t id, uint64_t *model_id,
                          struct ws_version_id *version);
/* The model's number: a former daemon's for that name, else `fresh`, which is kept. With a lock of the caller's. */
uint64_t ws_life_model_id(struct ws_life *l, const char *name, uint64_t fresh);

/* A handle of an open file or folder for the kernel, and back; NULL: a former daemon's. */
uint64_t ws_life_handle(const struct ws_life *l, const void *pointer);
void *ws_life_handled(const struct ws_life *l, uint64_t handle);

#endif
