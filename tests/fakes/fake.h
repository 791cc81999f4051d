/* A stand-in for CUDA's driver, for machines without a GPU: libcuda.so.1, whose functions have the real names
 * and whose declarations are cuda.h's. It is strict where CUDA is undefined: work runs late and in no other
 * order than streams and events demand, device memory faults when the CPU touches it, what was taken away
 * under a copy is a fault of the context.
 *
 * Device memory is a file in memory, mapped twice: without any access at the address that is handed out, and
 * readable and writable at an alias that only this library uses. While a kernel runs, what its context
 * reaches is readable and writable at its own address, too, so that a kernel's body dereferences device
 * addresses as it does on a GPU; a touch by the CPU goes unnoticed meanwhile.
 *
 * WSYNC_FAKE_CUDA configures it; fake_plan.c has the grammar. What it does not have: memory that several
 * processes take from the same device counts for each alone; a primary context that was released keeps its
 * memory.
 *
 * One lock guards everything here; work runs without it. */
#ifndef WS_TESTS_FAKE_H
#define WS_TESTS_FAKE_H
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_PUBLIC      __attribute__((visibility("default")))
#define FAKE_DEVICES     16
#define FAKE_PAGE        4096UL
#define FAKE_GRANULARITY (2UL << 20)
#define FAKE_EVENT_RING  64

/* --- fake_plan.c: the configuration --- */
struct fake_plan {
    unsigned devices, delay_us;
    uint64_t memory, seed, register_bytes; /* of each device; maximum that may be registered */
    int driver;
    bool peer, vmm, legacy, kernels;
};
const struct fake_plan *fake_plan(void);

enum fake_needs { FAKE_NOTHING, FAKE_INIT, FAKE_CONTEXT };
/* The beginning of each call: the failure injected for it, and whether the call is allowed now. */
CUresult fake_enter(const char *name, enum fake_needs needs);
CUresult fake_injected(const char *name);
/* Whether a fault was injected for the next operation that this thread puts into a stream; consumes it. */
bool fake_take_fault(void);
#define FAKE_ENTER(needs)                                                                                    \
    do {                                                                                                     \
        CUresult enter_rc = fake_enter(__func__, needs);                                                     \
        if (enter_rc != CUDA_SUCCESS)                                                                        \
            return enter_rc;                                                                                 \
    } while (0)

/* --- fake_device.c: devices and their primary contexts --- */
struct CUctx_st {
    int device;
    unsigned retained;
    CUresult sticky;  /* after a fault: the result of every call, once running operations have ended */
    unsigned running; /* of its streams' operations, those of the device */
    uint32_t peers;   /* whose memory kernels reach, a bit each */
    uint64_t submitted;
    struct CUstream_st *streams, *legacy;
};
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed; /* signals any event that a thread may wait for */
extern _Thread_local bool fake_in_stream;

CUcontext fake_context(void);          /* this thread's current one, or NULL */
CUcontext fake_context_of(int device); /* NULL: there is no such device */
bool fake_is_context(CUcontext ctx);
unsigned fake_device_count(void);
bool fake_is_owner(void);            /* initialised by this process, not by a parent */
unsigned fake_physical(int device);  /* its number among all devices, whatever CUDA_VISIBLE_DEVICES says */
int fake_visible(unsigned physical); /* or -1 */
void fake_break(CUcontext ctx, CUresult why); /* with the lock */
CUresult fake_sticky(CUcontext ctx);          /* with the lock, which it releases while it waits */

/* --- fake_range.c: address ranges, by their start --- */
enum fake_kind { FAKE_ALLOCATED, FAKE_IMPORTED, FAKE_MAPPED, FAKE_HOST, FAKE_REGISTERED };
struct fake_range {
    uintptr_t start;
    size_t bytes;
    enum fake_kind kind;
    CUcontext ctx;
    uint32_t access;      /* the devices with access, a bit each; a mapping may have none */
    unsigned char *alias; /* of start */
    uint64_t id;
    unsigned busy; /* copies and kernels that use it */
    /* not of host memory */
    uintptr_t map; /* mapped bytes: whole pages */
    size_t map_bytes;
    uint64_t place;                        /* FAKE_ALLOCATED: of its header in the device's file */
    struct fake_physical_memory *physical; /* FAKE_MAPPED */
    uint64_t offset;                       /* in it */
    struct fake_import *import;            /* FAKE_IMPORTED */
};
/* All with the lock. */
CUresult fake_range_add(const struct fake_range *range, struct fake_range **out);
void fake_range_remove(struct fake_range *range); /* waits until it is unused; frees it */
struct fake_range *fake_range_at(uintptr_t address);
struct fake_range *fake_range_after(uintptr_t address); /* the first range that begins there or later */
/* The ranges that contain [address, address + bytes), all with one alias. NULL: not, or only partly. */
unsigned char *fake_ranges_alias(uintptr_t address, size_t bytes, struct fake_range **first);
bool fake_ranges_touch(uintptr_t address, size_t bytes);
void fake_ranges_hold(uintptr_t address, size_t bytes, int step);
bool fake_is_device(const struct fake_range *range);
/* The memory that a kernel of the context may access: open to the CPU at its own address, until it is
 * closed. */
void fake_ranges_open(CUcontext ctx, bool open);
void *fake_map(int fd, uint64_t offset, size_t bytes, int prot);
uint64_t fake_new_id(void);
FAKE_PUBLIC void *ws_fake_at(CUdeviceptr address); /* this library's address of a device's byte; NULL: none */

/* --- fake_memory.c --- */
struct fake_header { /* before each allocation in the device's file; zeros once it was freed */
    uint64_t magic, id, map_bytes, start, bytes; /* start: of the allocation, from the mapping's beginning */
};
#define FAKE_HEADER_MAGIC 0x6576697461636f6cUL
bool fake_memory_take(int device, size_t bytes); /* with the lock; false: there is not that much */
void fake_memory_give(int device, size_t bytes);
int fake_memory_file(int device); /* with the lock; or -1 */
uint64_t fake_memory_free_bytes(int device);

/* --- fake_vmm.c --- */
CUresult fake_vmm_attribute(const struct fake_range *range, CUpointer_attribute attribute, void *data);

/* --- fake_stream.c --- */
struct fake_op {
    struct fake_op *next;
    CUcontext ctx;
    uint64_t number; /* in the order of the context's calls */
    bool fault;
    bool is_host;                            /* a host function: a broken context does not wait for its end */
    bool always;                             /* run even after a fault, because others wait for it */
    CUresult (*run)(struct fake_op *op);     /* without the lock; an error breaks the context */
    bool (*ready)(const struct fake_op *op); /* with the lock; NULL: ready as soon as it is first */
    bool polled;                             /* another process may make it ready */
    void (*free)(struct fake_op *op);
};
/* The stream that the handle means in this thread, or NULL; with the lock. */
CUstream fake_stream_find(CUstream handle);
CUresult fake_stream_new(CUcontext ctx, unsigned flags, CUstream *out); /* with the lock */
CUcontext fake_stream_context(CUstream stream);
/* Takes ownership of op. wait: until it is done. */
CUresult fake_stream_push(CUstream handle, struct fake_op *op, bool wait);
/* As cuLaunchHostFunc; drop: called instead of run, where the context broke; with the lock. NULL: nothing. */
FAKE_PUBLIC CUresult ws_fake_host_work(CUstream stream, CUhostFn run, CUhostFn drop, void *arg);
void fake_quiesce(CUcontext ctx); /* until everything submitted is done; with the lock */

/* --- fake_event.c --- */
struct fake_event_state { /* may lie in memory of several processes */
    _Atomic uint64_t recorded;
    _Atomic uint64_t done[FAKE_EVENT_RING]; /* the newest record of that place that is done */
};
struct CUevent_st {
    struct CUevent_st *next;
    CUcontext ctx;
    unsigned flags, refs;
    bool destroyed, imported;
    struct fake_event_state *state;
    int fd; /* of a shared one's state; or -1 */
    uint64_t id;
};
/* A handle for an event with that state; fd: -1, or the state's, whose ownership it takes. With the lock. */
CUresult fake_event_add(CUcontext ctx, unsigned flags, int fd, CUevent *out);
CUevent fake_event_find(CUevent handle); /* with the lock; or NULL */

#endif
