// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_52
// build: clang19 sm_75
// Every launch coordinate, flattened.
extern "C" __global__ void index3d(unsigned *out)
{
	unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
	unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	unsigned i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
	out[4 * i + 0] = i;
	out[4 * i + 1] = threadIdx.x << 20 | threadIdx.y << 10 | threadIdx.z;
	out[4 * i + 2] = blockIdx.x << 20 | blockIdx.y << 10 | blockIdx.z;
	out[4 * i + 3] = (gridDim.x * 31 + gridDim.y) * 31 + gridDim.z;
}
