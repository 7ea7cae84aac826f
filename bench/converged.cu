// Kernels that write which threads of their warp are active after each step; see
// converged.py.
#include <cstdio>
#include <cuda_runtime.h>

constexpr int kThreads = 64, kSteps = 16, kWords = 4096;

#define ACTIVE(step) out[threadIdx.x * kSteps + step] = __activemask()

__global__ void accesses(unsigned *out, unsigned *a) {
  unsigned t = threadIdx.x, x = a[t];
  ACTIVE(0);
  a[t + 64] = x + 1;
  ACTIVE(1);
  x += a[t + 128];
  ACTIVE(2);
  a[t + 64] = x;
  ACTIVE(3);
}

// One thread of each warp accesses memory while the others wait for it.
__global__ void alone(unsigned *out, unsigned *a) {
  __shared__ unsigned s[64];
  unsigned t = threadIdx.x;
  s[t] = a[t];
  ACTIVE(0);
  if (t % 32 == 0) {
    s[t] = 7;
    s[t + 1] = a[t + 5] + clock();
  }
  __syncthreads();
  ACTIVE(1);
  if (t % 32 == 0)
    s[t + 2] = a[t + 6];
  ACTIVE(2);
  __syncthreads();
  unsigned x = s[(t + 1) % 64];
  ACTIVE(3);
  a[t + 64] = x;
  ACTIVE(4);
}

__global__ void halves(unsigned *out, unsigned *a) {
  unsigned t = threadIdx.x;
  ACTIVE(0);
  if (t & 1) {
    a[t] += 1;
    ACTIVE(1);
    a[t + 64] += 2;
    ACTIVE(2);
  } else {
    a[t] += 3;
    ACTIVE(1);
    a[t + 128] += a[t + 4];
    ACTIVE(2);
  }
  __syncwarp();
  ACTIVE(3);
  a[t] = a[t + 64];
  ACTIVE(4);
}

// Nested loops that threads leave one by one need a convergence barrier each.
template <int D>
__device__ __forceinline__ unsigned nest(unsigned *a, unsigned t, unsigned s) {
  for (unsigned i = 0; i < (a[t + D] & 3) + 1; i++) {
    if (a[(s + D) & 127] != t + 77777u)
      s = nest<D - 1>(a, t, s + a[(s + i) & 127]);
    a[256 + t] = s;
  }
  return s;
}
template <>
__device__ __forceinline__ unsigned nest<0>(unsigned *a, unsigned t, unsigned s) {
  return s + a[t];
}
template <int D> __global__ void deep(unsigned *out, unsigned *a) {
  unsigned t = threadIdx.x;
  ACTIVE(0);
  unsigned s = nest<D>(a, t, 0);
  __syncwarp();
  ACTIVE(1);
  a[t + 300] = s;
  ACTIVE(2);
  a[t + 400] = a[t + 2];
  ACTIVE(3);
  if (t == 3)
    a[t + 500] = s;
  __syncwarp();
  ACTIVE(4);
  a[t + 600] = a[t + 300];
  ACTIVE(5);
}

// Both ways keep constants in uniform registers over their accesses.
__constant__ unsigned constants[8] = {3, 5, 7, 11, 13, 17, 19, 23};
__global__ void uniforms(unsigned *out, unsigned *a) {
  unsigned t = threadIdx.x, x = 0;
  if (t % 3 == 0) {
    for (unsigned i = 0; i < (a[t] & 7) + t % 5; i++)
      x += (a[t + i + x % 32] + blockDim.x) * constants[0] + (a[x % 64 + 128] ^ constants[1]);
    out[t * kSteps] = x;
  } else {
    for (unsigned i = 0; i < (a[t + 64] & 15) + t % 7; i++)
      x ^= (a[t + i + x % 16] - gridDim.x) * constants[2] + (a[x % 32 + 228] | constants[3]) - constants[4];
    out[t * kSteps] = x + 1;
  }
  __syncwarp();
  ACTIVE(1);
}

static void check(const char *name, cudaError_t e) {
  if (e == cudaSuccess)
    return;
  printf("%s: %s\n", name, cudaGetErrorString(e));
  exit(1);
}

static void run(const char *name, void (*kernel)(unsigned *, unsigned *)) {
  static unsigned h[kThreads * kSteps];
  unsigned *out, *a;
  check(name, cudaMalloc(&out, sizeof h));
  check(name, cudaMalloc(&a, kWords * 4));
  check(name, cudaMemset(out, 0, sizeof h));
  check(name, cudaMemset(a, 1, kWords * 4));
  kernel<<<1, kThreads>>>(out, a);
  check(name, cudaDeviceSynchronize());
  check(name, cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost));
  for (int step = 0; step < 6; step++) {
    printf("%-9s %d:", name, step);
    for (int t = 0; t < kThreads; t++)
      if (t == 0 || h[t * kSteps + step] != h[(t - 1) * kSteps + step])
        printf(" %d=%08x", t, h[t * kSteps + step]);
    printf("\n");
  }
  fflush(stdout);
}

int main() {
  run("accesses", accesses);
  run("alone", alone);
  run("halves", halves);
  run("uniforms", uniforms);
  run("deep1", deep<1>);
  run("deep2", deep<2>);
  run("deep4", deep<4>);
  run("deep6", deep<6>);
}
