// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_80
// Cooperative groups: tiles, coalesced groups, reductions.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void groups(const int *in, int *out)
{
	cg::thread_block b = cg::this_thread_block();
	auto t = cg::tiled_partition<8>(b);
	int v = in[b.thread_rank()];
	int s = cg::reduce(t, v, cg::plus<int>());
	int m = cg::reduce(t, v, cg::greater<int>());
	if (v > 0) {
		cg::coalesced_group a = cg::coalesced_threads();
		s += (int)(a.thread_rank() + 100 * a.size());
	}
	b.sync();
	out[b.thread_rank()] = s * 1000 + m + t.shfl_xor(v, 1);
}
