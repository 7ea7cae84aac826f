// Kernels with and without probes, timed in one process by CUDA events: of each there
// is a twin, plain_NAME, that probes leave alone. Results are checked.
// usage: attach [rounds [launches a round [work...]]]
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                             \
  do {                                                                          \
    cudaError_t e = (call);                                                     \
    if (e != cudaSuccess) {                                                     \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

__constant__ int elements;

__device__ __forceinline__ void add(const float *a, const float *b, float *c) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < elements) c[i] = a[i] + b[i];
}
__global__ void vectorAdd(const float *a, const float *b, float *c) { add(a, b, c); }
__global__ void plain_vectorAdd(const float *a, const float *b, float *c) { add(a, b, c); }

const int tile = 16;

__device__ __forceinline__ void multiply(const float *a, const float *b, float *c, int n) {
  __shared__ float as[tile][tile], bs[tile][tile];
  int x = blockIdx.x * tile + threadIdx.x, y = blockIdx.y * tile + threadIdx.y;
  float sum = 0;
  for (int t = 0; t < n; t += tile) {
    as[threadIdx.y][threadIdx.x] = a[y * n + t + threadIdx.x];
    bs[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + x];
    __syncthreads();
    for (int k = 0; k < tile; k++) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
    __syncthreads();
  }
  c[y * n + x] = sum;
}
__global__ void matmul(const float *a, const float *b, float *c, int n) { multiply(a, b, c, n); }
__global__ void plain_matmul(const float *a, const float *b, float *c, int n) { multiply(a, b, c, n); }

__device__ __forceinline__ void sum(const float *a, float *out, int n) {
  __shared__ float part[256];
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += a[i];
  part[threadIdx.x] = s;
  for (int w = 128; w > 0; w /= 2) {
    __syncthreads();
    if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
__global__ void reduce(const float *a, float *out, int n) { sum(a, out, n); }
__global__ void plain_reduce(const float *a, float *out, int n) { sum(a, out, n); }

__global__ void empty() {}
__global__ void plain_empty() {}

static int rounds = 5, launches = 20;

// best times both kernels in turns; microseconds a launch of the best rounds.
static void best(const std::function<void(bool)> &launch, double us[2]) {
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  us[0] = us[1] = INFINITY;
  for (int r = 0; r <= rounds; r++) // the first warms up
    for (int probed = 0; probed < 2; probed++) {
      CHECK(cudaEventRecord(from));
      for (int i = 0; i < launches; i++) launch(probed);
      CHECK(cudaEventRecord(to));
      CHECK(cudaEventSynchronize(to));
      CHECK(cudaGetLastError());
      float ms;
      CHECK(cudaEventElapsedTime(&ms, from, to));
      if (r > 0) us[probed] = std::fmin(us[probed], ms * 1e3 / launches);
    }
  CHECK(cudaEventDestroy(from));
  CHECK(cudaEventDestroy(to));
}

// show prints one line of JSON; count is the launches of a round.
static int show(const char *name, long threads, int count, const double us[2], const void *plain, const void *probed, bool good) {
  cudaFuncAttributes a, b;
  CHECK(cudaFuncGetAttributes(&a, plain));
  CHECK(cudaFuncGetAttributes(&b, probed));
  printf("{\"work\": \"%s\", \"threads\": %ld, \"launches\": %d, \"plain_us\": %.3f, \"probed_us\": %.3f, \"ratio\": %.4f, \"registers\": [%d, %d], "
         "\"local\": [%zu, %zu], \"ok\": %s}\n", name, threads, (rounds + 1) * count, us[0], us[1], us[1] / us[0], a.numRegs, b.numRegs,
         a.localSizeBytes, b.localSizeBytes, good ? "true" : "false");
  fflush(stdout);
  return !good;
}

static std::vector<float> fetch(const float *d, size_t n) {
  std::vector<float> v(n);
  CHECK(cudaMemcpy(v.data(), d, n * sizeof(float), cudaMemcpyDeviceToHost));
  return v;
}

static float *put(const std::vector<float> &v) {
  float *d;
  CHECK(cudaMalloc(&d, v.size() * sizeof(float)));
  CHECK(cudaMemcpy(d, v.data(), v.size() * sizeof(float), cudaMemcpyHostToDevice));
  return d;
}

static int vadd(const char *name, int n) {
  std::vector<float> h(n);
  for (int i = 0; i < n; i++) h[i] = i & 0xffff;
  float *a = put(h), *b = put(h), *c[2];
  for (auto &p : c) CHECK(cudaMalloc(&p, n * sizeof(float)));
  CHECK(cudaMemcpyToSymbol(elements, &n, sizeof n));
  double us[2];
  best([&](bool p) {
    if (p) vectorAdd<<<(n + 255) / 256, 256>>>(a, b, c[1]);
    else plain_vectorAdd<<<(n + 255) / 256, 256>>>(a, b, c[0]);
  }, us);
  bool good = true;
  for (auto p : c) {
    std::vector<float> v = fetch(p, n);
    for (int i = 0; i < n; i++) good = good && v[i] == 2 * h[i];
    CHECK(cudaFree(p));
  }
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  return show(name, n, launches, us, (void *)plain_vectorAdd, (void *)vectorAdd, good);
}

static int product(const char *name, int n) {
  std::vector<float> h(n * n), g(n * n);
  for (int i = 0; i < n * n; i++) h[i] = i % 7, g[i] = i % 5;
  float *a = put(h), *b = put(g), *c[2];
  for (auto &p : c) CHECK(cudaMalloc(&p, n * n * sizeof(float)));
  double us[2];
  dim3 grid(n / tile, n / tile), block(tile, tile);
  best([&](bool p) {
    if (p) matmul<<<grid, block>>>(a, b, c[1], n);
    else plain_matmul<<<grid, block>>>(a, b, c[0], n);
  }, us);
  std::vector<float> u = fetch(c[0], n * n), v = fetch(c[1], n * n);
  bool good = u == v;
  for (int i = 0; i < n * n; i += n * n / 64 + 1) { // whole numbers: exact in float
    float want = 0;
    for (int k = 0; k < n; k++) want += h[i / n * n + k] * g[k * n + i % n];
    good = good && u[i] == want;
  }
  for (auto p : {a, b, c[0], c[1]}) CHECK(cudaFree(p));
  return show(name, (long)n * n, launches, us, (void *)plain_matmul, (void *)matmul, good);
}

static int reduction(const char *name, int n) {
  const int blocks = 1024;
  std::vector<float> h(n);
  double want = 0;
  for (int i = 0; i < n; i++) want += h[i] = i % 3;
  float *a = put(h), *out[2];
  for (auto &p : out) CHECK(cudaMalloc(&p, blocks * sizeof(float)));
  double us[2];
  best([&](bool p) {
    if (p) reduce<<<blocks, 256>>>(a, out[1], n);
    else plain_reduce<<<blocks, 256>>>(a, out[0], n);
  }, us);
  bool good = true;
  for (auto p : out) {
    double got = 0;
    for (float x : fetch(p, blocks)) got += x;
    good = good && got == want;
    CHECK(cudaFree(p));
  }
  CHECK(cudaFree(a));
  return show(name, blocks * 256L, launches, us, (void *)plain_reduce, (void *)reduce, good);
}

// launching times the host's side of launches.
static int launching(const char *name, int count) {
  double us[2] = {INFINITY, INFINITY};
  for (int r = 0; r <= rounds; r++)
    for (int probed = 0; probed < 2; probed++) {
      CHECK(cudaDeviceSynchronize());
      auto from = std::chrono::steady_clock::now();
      for (int i = 0; i < count; i++) {
        if (probed) empty<<<1, 32>>>();
        else plain_empty<<<1, 32>>>();
      }
      double t = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - from).count() / count;
      CHECK(cudaDeviceSynchronize());
      if (r > 0) us[probed] = std::fmin(us[probed], t);
    }
  return show(name, 32, count, us, (void *)plain_empty, (void *)empty, true);
}

int main(int argc, char **argv) {
  if (argc > 1) rounds = atoi(argv[1]);
  if (argc > 2) launches = atoi(argv[2]);
  struct { const char *name; int (*run)(const char *, int); int size; } works[] = {
    {"vadd 4K", vadd, 1 << 12},          {"vadd 1M", vadd, 1 << 20}, {"vadd 16M", vadd, 1 << 24},
    {"matmul 32", product, 32},          {"matmul 1024", product, 1024},
    {"reduce 64K", reduction, 1 << 16},  {"reduce 16M", reduction, 1 << 24},
    {"launch few", launching, 8},        {"launch", launching, 500}, // fewer than a stream takes before it blocks
  };
  int bad = 0;
  for (auto &w : works) {
    bool wanted = false;
    for (int i = 3; i < argc; i++) wanted = wanted || !strcmp(argv[i], w.name);
    if (wanted) bad |= w.run(w.name, w.size);
  }
  return bad;
}
