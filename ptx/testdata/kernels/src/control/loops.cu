// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_75 -G
// build: clang19 sm_60
// Nested loops with break and continue, early exits, goto, short-circuit conditions, a trap never taken.
extern "C" __global__ void loops(const int *in, int *out, int n)
{
	int t = threadIdx.x, s = 0;
	if (t == 31)
		return;
	for (int i = 0; i < n; i++) {
		if (in[i] == t)
			continue;
		for (int j = i; j < n; j += in[j] & 3 ? 1 : 2) {
			if (in[j] < 0 && in[i] > t || s > 100000)
				break;
			s += in[j] * (j - i);
			if (s == 0x7fffffff)
				goto out;
		}
	}
	do
		s -= t + 1;
	while (s > 1000);
out:
	if (s == 0x12345678)
		__trap();
	out[t] = s;
}
