// build: nvcc13.0 sm_75
// build: clang19 sm_70
// CRC-32 with the table in constant memory, filled by the host.
__constant__ unsigned table[256];
extern "C" __global__ void crc32(const unsigned char *in, int len, unsigned *out)
{
	int id = blockIdx.x * blockDim.x + threadIdx.x;
	unsigned c = ~0u;
	for (int i = 0; i < len; i++)
		c = table[(c ^ in[id * len + i]) & 255] ^ c >> 8;
	out[id] = ~c;
}
