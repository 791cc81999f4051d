/* A trainer's work for the benchmark: c = a b of n x n floats, tile by tile, n a multiple of 64. */
#define TILE 32

extern "C" __global__ void bench_matmul(const float *a, const float *b, float *c, int n)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE + 1];
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++)
            sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
