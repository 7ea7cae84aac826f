// build: nvcc13.0 sm_80
// Packed structures and memcpy: byte-wise accesses.
struct __attribute__((packed)) P { char a; int b; double c; short d; };
extern "C" __global__ void unaligned(const P *in, P *out)
{
	P p = in[threadIdx.x];
	p.b += p.a;
	p.c *= 2;
	p.d = (short)(p.d << 1);
	memcpy(&out[threadIdx.x], &p, sizeof p);
}
