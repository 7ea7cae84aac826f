// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_100
// A cluster of two blocks that read each other's shared memory.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_swap(const int *in, int *out)
{
	__shared__ int s[64];
	cg::cluster_group c = cg::this_cluster();
	int i = blockIdx.x * 64 + threadIdx.x;
	s[threadIdx.x] = in[i];
	c.sync();
	int *peer = c.map_shared_rank(s, c.block_rank() ^ 1);
	out[i] = peer[63 - threadIdx.x] + (int)c.num_blocks();
	c.sync();
}
