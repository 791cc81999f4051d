/* Modules and kernels. Any fat binary is accepted as a module, and so is data that begins with "WSYNC-FAKE";
 * its kernels are wsync's own in their CPU form, and one of the stand-in's. */
#include "tests/fakes/fake.h"
#include "transports/device/kernels/cpu.h"
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC  0xba55ed50U
#define ALIGNMENT     16UL
#define SHARED_BYTES  (48U << 10)
#define BLOCK_THREADS 1024

/* Adds a number to each of n 64-bit words: for tests of the stand-in itself. */
struct add_args {
    uint64_t *words, n, add;
};

static void add_words(void **args, unsigned n_blocks, unsigned n_threads)
{
    const struct add_args *a = args[0];
    uint64_t step = (uint64_t)n_blocks * n_threads;
    for (uint64_t thread = 0; thread < step; thread++)
        for (uint64_t i = thread; i < a->n; i += step)
            a->words[i] += a->add;
}

static const struct ws_cpu_kernel own_kernels[] = {{"fake_add_words", add_words, sizeof(struct add_args)}};

#define N_OWN     (sizeof(own_kernels) / sizeof(own_kernels[0]))
#define N_KERNELS (N_OWN + sizeof(ws_cpu_kernels) / sizeof(ws_cpu_kernels[0]))

static const struct ws_cpu_kernel *kernel_of(size_t i)
{
    return i < N_OWN ? &own_kernels[i] : &ws_cpu_kernels[i - N_OWN];
}

struct CUmod_st {
    CUcontext ctx;
};
struct CUfunc_st {
    struct CUmod_st *module;
    const struct ws_cpu_kernel *kernel;
};

/* They belong to a context forever: cuModuleUnload is not called. */
static struct CUmod_st modules[FAKE_DEVICES];
static struct CUfunc_st functions[FAKE_DEVICES][N_KERNELS];

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUcontext ctx = fake_context();
    uint32_t magic;
    memcpy(&magic, image, sizeof(magic));
    if (magic != FATBIN_MAGIC && strncmp(image, "WSYNC-FAKE", 10))
        return CUDA_ERROR_INVALID_IMAGE;
    if (!fake_plan()->kernels)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    pthread_mutex_lock(&fake_lock);
    modules[ctx->device].ctx = ctx;
    pthread_mutex_unlock(&fake_lock);
    *out = &modules[ctx->device];
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    FAKE_ENTER(FAKE_CONTEXT);
    if (module < modules || module >= modules + FAKE_DEVICES)
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < N_KERNELS; i++)
        if (!strcmp(kernel_of(i)->name, name)) {
            struct CUfunc_st *f = &functions[module - modules][i];
            pthread_mutex_lock(&fake_lock);
            *f = (struct CUfunc_st){module, kernel_of(i)};
            pthread_mutex_unlock(&fake_lock);
            *out = f;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

struct kernel_op {
    struct fake_op op;
    const struct ws_cpu_kernel *kernel;
    unsigned n_blocks, n_threads;
    unsigned char *args; /* aligned */
    unsigned char room[];
};

static CUresult run_kernel(struct fake_op *op)
{
    struct kernel_op *k = (struct kernel_op *)op;
    pthread_mutex_lock(&fake_lock);
    fake_ranges_open(op->ctx, true);
    pthread_mutex_unlock(&fake_lock);
    void *args[] = {k->args};
    k->kernel->run(args, k->n_blocks, k->n_threads);
    pthread_mutex_lock(&fake_lock);
    fake_ranges_open(op->ctx, false);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void **args, void **extra)
{
    FAKE_ENTER(FAKE_CONTEXT);
    const struct ws_cpu_kernel *kernel = f->kernel;
    uint64_t threads = (uint64_t)block_x * block_y * block_z, blocks = (uint64_t)grid_x * grid_y * grid_z;

    if (!threads || threads > BLOCK_THREADS || !blocks || blocks > INT32_MAX || shared_bytes > SHARED_BYTES ||
        extra)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    CUstream s = fake_stream_find(stream);
    bool fits = s && fake_stream_context(s) == f->module->ctx;
    pthread_mutex_unlock(&fake_lock);
    if (!fits)
        return CUDA_ERROR_INVALID_HANDLE;
    struct kernel_op *k = calloc(1, sizeof(*k) + ALIGNMENT + kernel->args_bytes);
    if (!k)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *k = (struct kernel_op){.op = {.run = run_kernel},
                            .kernel = kernel,
                            .n_blocks = (unsigned)blocks,
                            .n_threads = (unsigned)threads};
    k->args = (unsigned char *)(((uintptr_t)k->room + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    memcpy(k->args, args[0], kernel->args_bytes);
    return fake_stream_push(stream, &k->op, false);
}
