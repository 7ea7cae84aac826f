// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_60
// build: clang19 sm_80
// Dense and sparse switches: jump tables and compare trees, fall-through.
extern "C" __global__ void switches(const int *in, int *out)
{
	int v = in[threadIdx.x], r = 0;
	switch (v & 15) {
	case 0: r = v * 3; break;
	case 1: r = v / 5; break;
	case 2: r = ~v;
	case 3: r += v << 2; break;
	case 4: r = __popc(v); break;
	case 5: r = v % 11; break;
	case 6: r = v ^ 0x1234; break;
	case 7: r = v > 100 ? 1 : 2; break;
	case 8: r = -v; break;
	case 9: r = v * v; break;
	case 10: r = __clz(v);
	case 11: r -= 5; break;
	default: r = 99;
	}
	switch (v) {
	case -1000: r++; break;
	case 7: r += 2; break;
	case 123456: r += 3; break;
	case 2000000000: r += 4; break;
	}
	out[threadIdx.x] = r;
}
