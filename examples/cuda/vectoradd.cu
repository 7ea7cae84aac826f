// vectorAdd: c = a + b over n floats, checked on the host.
// usage: vectoradd [n [rounds [seconds to hold the memory]]]
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <unistd.h>

#define CHECK(call)                                                             \
  do {                                                                          \
    cudaError_t e = (call);                                                     \
    if (e != cudaSuccess) {                                                     \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

__global__ void vectorAdd(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 50000;
  int rounds = argc > 2 ? atoi(argv[2]) : 1;
  size_t size = n * sizeof(float);
  float *h = (float *)malloc(3 * size), *d[3];
  for (int i = 0; i < n; i++) h[i] = i * 0.5f, h[n + i] = i * 0.25f;
  for (int k = 0; k < 3; k++) CHECK(cudaMalloc(&d[k], size));
  CHECK(cudaMemcpy(d[0], h, size, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(d[1], h + n, size, cudaMemcpyHostToDevice));
  for (int r = 0; r < rounds; r++) vectorAdd<<<(n + 255) / 256, 256>>>(d[0], d[1], d[2], n);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(h + 2 * n, d[2], size, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; i++)
    if (h[2 * n + i] != h[i] + h[n + i]) {
      printf("wrong result at %d\n", i);
      return 1;
    }
  if (argc > 3) sleep(atoi(argv[3]));
  for (int k = 0; k < 3; k++) CHECK(cudaFree(d[k]));
  printf("vectorAdd of %d elements: ok\n", n);
  return 0;
}
