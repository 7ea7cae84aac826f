// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_80 -fmad=false
// Gaussian elimination of a small system held in local arrays: dynamic indexing forces a stack frame.
extern "C" __global__ void gauss(const double *in, double *out)
{
	double m[6][7];
	int id = blockIdx.x * blockDim.x + threadIdx.x;
	for (int i = 0; i < 6; i++)
		for (int j = 0; j < 7; j++)
			m[i][j] = in[(id * 6 + i) * 7 + j];
	for (int c = 0; c < 6; c++) {
		int p = c;
		for (int r = c + 1; r < 6; r++)
			if (fabs(m[r][c]) > fabs(m[p][c]))
				p = r;
		for (int j = 0; j < 7; j++) {
			double t = m[c][j];
			m[c][j] = m[p][j];
			m[p][j] = t;
		}
		for (int r = 0; r < 6; r++)
			if (r != c) {
				double f = m[r][c] / m[c][c];
				for (int j = c; j < 7; j++)
					m[r][j] -= f * m[c][j];
			}
	}
	for (int i = 0; i < 6; i++)
		out[id * 6 + i] = m[i][6] / m[i][i];
}
