// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90
// Warp matrix products by inline assembly, fed by ldmatrix, and by the wmma interface.
#include <mma.h>
#include <cuda_fp16.h>
extern "C" __global__ void mma_f16(const unsigned *a, const unsigned *b, float *d)
{
	__shared__ __align__(16) unsigned s[128];
	int l = threadIdx.x;
	for (int i = 0; i < 4; i++)
		s[i * 32 + l] = a[i * 32 + l];
	__syncwarp();
	unsigned p = (unsigned)__cvta_generic_to_shared(s + (l % 16) * 4 + (l / 16) * 64 % 128), r0, r1, r2, r3;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(p));
	float c[4] = {0, 1, 2, 3};
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(r0), "r"(r1), "r"(r2), "r"(r3), "r"(b[l]), "r"(b[32 + l]));
	for (int i = 0; i < 4; i++)
		d[4 * l + i] = c[i];
}
extern "C" __global__ void wmma_f16(const __half *a, const __half *b, float *c)
{
	using namespace nvcuda::wmma;
	fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
	fragment<matrix_b, 16, 16, 16, __half, col_major> fb;
	fragment<accumulator, 16, 16, 16, float> fc;
	fill_fragment(fc, 0.0f);
	load_matrix_sync(fa, a, 16);
	load_matrix_sync(fb, b, 16);
	mma_sync(fc, fa, fb, fc);
	store_matrix_sync(c, fc, 16, mem_row_major);
}
