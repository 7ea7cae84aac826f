// build: nvcc13.0 sm_75
// Count of word starts in UTF-8 text: uchar4 loads, a switch on the character class.
__device__ int cls(unsigned char c)
{
	switch (c) {
	case ' ': case '\t': case '\n': case '\r':
		return 0;
	case '.': case ',': case ';': case ':': case '!': case '?':
		return 1;
	case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
		return 2;
	default:
		return c >= 0x80 ? 4 : 3;
	}
}
extern "C" __global__ void wordcount(const unsigned char *text, int n, int *count)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	int start = i < n && cls(text[i]) >= 2 && (i == 0 || cls(text[i - 1]) < 2);
	int c = __syncthreads_count(start);
	if (threadIdx.x == 0)
		atomicAdd(count, c);
}
