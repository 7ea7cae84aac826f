// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_75
// build: nvrtc12.4 sm_52
// build: nvrtc13.5 sm_90 -G
// Function pointers: a table in memory, a pointer passed down, virtual methods.
typedef int (*op)(int, int);
__device__ int f_add(int a, int b) { return a + b; }
__device__ int f_sub(int a, int b) { return a - b; }
__device__ int f_mul(int a, int b) { return a * b; }
__device__ int f_xor(int a, int b) { return a ^ b; }
__device__ op ops[4] = {f_add, f_sub, f_mul, f_xor};
struct Shape { __device__ virtual int area() const = 0; };
struct Square : Shape { int s; __device__ Square(int s) : s(s) {} __device__ int area() const override { return s * s; } };
struct Rect : Shape { int w, h; __device__ Rect(int w, int h) : w(w), h(h) {} __device__ int area() const override { return w * h; } };
__device__ __noinline__ int apply(op f, int a, int b) { return f(a, b); }
extern "C" __global__ void indirect(const int *in, int *out)
{
	int t = threadIdx.x, v = in[t];
	Square s(v & 15);
	Rect r(v & 7, t);
	const Shape *sh = v & 16 ? (const Shape *)&s : (const Shape *)&r;
	out[2 * t] = apply(ops[v & 3], v, t);
	out[2 * t + 1] = sh->area();
}
