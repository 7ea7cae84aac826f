// build: nvcc13.0 sm_90
// Base64 encoding of three bytes a thread with a table in global memory.
__device__ const char alphabet[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
extern "C" __global__ void base64(const unsigned char *in, uchar4 *out)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	unsigned v = in[3 * i] << 16 | in[3 * i + 1] << 8 | in[3 * i + 2];
	out[i] = make_uchar4(alphabet[v >> 18], alphabet[v >> 12 & 63], alphabet[v >> 6 & 63], alphabet[v & 63]);
}
