// Two processes use CUDA: the parent, and a child that it forks before its own
// first call (a CUDA context does not survive fork). Each fills a buffer on the
// GPU; the parent reads the child's through CUDA IPC. The exit status is the
// sum of both results' last bytes.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call)                                                             \
  do {                                                                          \
    cudaError_t e = (call);                                                     \
    if (e != cudaSuccess) {                                                     \
      fprintf(stderr, "%d: %s: %s\n", getpid(), #call, cudaGetErrorString(e));  \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

__global__ void fill(int *p, int n, int v) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = v + i;
}

static const int n = 1 << 16;

static int *make(int v) {
  int *d;
  CHECK(cudaMalloc(&d, n * sizeof(int)));
  fill<<<n / 256, 256>>>(d, n, v);
  CHECK(cudaDeviceSynchronize());
  return d;
}

static int last(const int *d) {
  int v;
  CHECK(cudaMemcpy(&v, d + n - 1, sizeof v, cudaMemcpyDeviceToHost));
  return v;
}

int main() {
  int up[2], down[2];
  if (pipe(up) || pipe(down)) return 1;
  pid_t child = fork();
  if (child == 0) {
    int *d = make(1000);
    cudaIpcMemHandle_t handle;
    cudaError_t e = cudaIpcGetMemHandle(&handle, d);
    int ok = e == cudaSuccess;
    if (write(up[1], &ok, sizeof ok) < 0 || (ok && write(up[1], &handle, sizeof handle) < 0)) return 1;
    char c;
    if (read(down[0], &c, 1) < 0) return 1;
    printf("child: last element %d\n", last(d));
    return 3;
  }
  int *mine = make(1), ok = 0;
  if (read(up[0], &ok, sizeof ok) != sizeof ok) return 1;
  if (ok) {
    cudaIpcMemHandle_t handle;
    if (read(up[0], &handle, sizeof handle) != sizeof handle) return 1;
    int *theirs;
    CHECK(cudaIpcOpenMemHandle((void **)&theirs, handle, cudaIpcMemLazyEnablePeerAccess));
    printf("parent: the child's last element %d\n", last(theirs));
    CHECK(cudaIpcCloseMemHandle(theirs));
  }
  fflush(stdout);
  if (write(down[1], "x", 1) < 0) return 1;
  int st;
  waitpid(child, &st, 0);
  printf("parent: last element %d, child's status %d\n", last(mine), WEXITSTATUS(st));
  return WEXITSTATUS(st) + 4;
}
