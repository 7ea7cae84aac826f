// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_60
// Texture and surface objects.
extern "C" __global__ void texture_ops(cudaTextureObject_t t, cudaTextureObject_t t1, cudaSurfaceObject_t s, float4 *out)
{
	int i = threadIdx.x;
	float4 a = tex2D<float4>(t, i + 0.5f, 0.5f);
	float4 b = tex2DLod<float4>(t, 0.5f, i, 1.0f);
	float c = tex1Dfetch<float>(t1, i);
	int d = surf2Dread<int>(s, i * 4, 1);
	surf2Dwrite(d + 1, s, i * 4, 2);
	float4 g = tex2Dgather<float4>(t, 0.1f, 0.2f, 1);
	out[i] = make_float4(a.x + b.y, c, (float)d, g.w);
}
