// Eight threads allocate, launch and free on one GPU, each on a stream of its
// own; every result is checked.
#include <atomic>
#include <cstdio>
#include <cuda_runtime.h>
#include <thread>
#include <vector>

__global__ void scale(int *p, int n, int f) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = i * f;
}

static std::atomic<int> good;

static void work(int f) {
  const int n = 1 << 14;
  for (int round = 0; round < 20; round++) {
    int *d, h[2];
    cudaStream_t s;
    if (cudaStreamCreate(&s) || cudaMalloc(&d, (1 + round) * n * sizeof(int))) return;
    scale<<<n / 128, 128, 0, s>>>(d, n, f);
    if (cudaMemcpyAsync(h, d + n - 2, sizeof h, cudaMemcpyDeviceToHost, s) || cudaStreamSynchronize(s)) return;
    good += h[1] == (n - 1) * f && h[0] == (n - 2) * f;
    cudaFree(d);
    cudaStreamDestroy(s);
  }
}

int main() {
  std::vector<std::thread> ts;
  for (int i = 0; i < 8; i++) ts.emplace_back(work, i + 1);
  for (auto &t : ts) t.join();
  printf("threads: %d of 160 rounds right\n", good.load());
  return good == 160 ? 0 : 1;
}
