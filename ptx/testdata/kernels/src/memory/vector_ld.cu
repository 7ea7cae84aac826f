// build: nvcc13.0 sm_75
// build: nvcc13.0 sm_90
// build: clang19 sm_60
// build: nvrtc13.5 sm_100
// Vector loads and stores of every width.
extern "C" __global__ void vector_ld(const uchar4 *a, const short2 *b, const int2 *c, const int4 *d, const double2 *e, int4 *out, double2 *dout)
{
	int i = threadIdx.x;
	uchar4 x = a[i];
	short2 y = b[i];
	int2 z = c[i];
	int4 w = d[i];
	double2 q = e[i];
	out[i] = make_int4(x.x + y.x + z.x + w.x, x.y * y.y + z.y - w.y, x.z ^ w.z, x.w | w.w);
	dout[i] = make_double2(q.y, -q.x);
}
