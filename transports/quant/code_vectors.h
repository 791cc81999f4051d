/* The vectors of the quantising loops: LANES elements of 32 bits, or twice as many of 16 in as many bytes. */
#include <stdint.h>

typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t pair __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef uint8_t pair_bytes __attribute__((vector_size(2 * LANES)));
