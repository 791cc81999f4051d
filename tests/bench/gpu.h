/* A GPU for the benchmarks: its memory, queues and times, the shapes of a real model on it. Ends the program
 * with the reason if there is none. */
#ifndef WS_BENCH_GPU_H
#define WS_BENCH_GPU_H
#include "tests/bench/trainer.h"
#include "transports/device/device.h"

/* Opens the driver and prints the device; skips the benchmark if there is none. */
void bench_gpu_open(void);
struct ws_device_queue *bench_gpu_queue(void);
void *bench_gpu_memory(uint64_t bytes); /* of device 0, filled; never freed */
void *bench_gpu_pinned(uint64_t bytes); /* of the host, likewise */
/* Waits until the queue is empty. */
void bench_gpu_finish(struct ws_device_queue *q);
void bench_gpu_copy(struct ws_device_queue *q, void *dst, const void *src, uint64_t bytes);
/* The number of the model's layers to use: 28, or $BENCH_LAYERS for a quick try. */
size_t bench_gpu_layers(void);
/* Qwen3-1.7B: 3.4 GB in bf16. */
void bench_add_qwen_1_7b(struct bench_rank *r);

#endif
