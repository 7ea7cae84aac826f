// A compiler library whose machine code is the text, or with -DREFUSED something
// that no driver loads.
#include <stdlib.h>
#include <string.h>

struct handle { char *ptx; size_t n; };

int nvPTXCompilerGetVersion(unsigned *major, unsigned *minor) { *major = 13; *minor = 0; return 0; }

int nvPTXCompilerCreate(struct handle **h, size_t n, const char *ptx)
{
	*h = calloc(1, sizeof **h);
	(*h)->ptx = malloc(n);
	memcpy((*h)->ptx, ptx, n);
	(*h)->n = n;
#ifdef REFUSED
	memset((*h)->ptx, '?', n);
#endif
	return 0;
}

int nvPTXCompilerCompile(struct handle *h, int n, const char *const *options)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(options[i], "--gpu-name=sm_90"))
			return 0;
	return 5;
}

int nvPTXCompilerGetCompiledProgramSize(struct handle *h, size_t *n) { *n = h->n; return 0; }
int nvPTXCompilerGetCompiledProgram(struct handle *h, char *b) { memcpy(b, h->ptx, h->n); return 0; }
int nvPTXCompilerGetInfoLogSize(struct handle *h, size_t *n) { *n = 0; return 0; }
int nvPTXCompilerGetInfoLog(struct handle *h, char *b) { return 0; }
int nvPTXCompilerGetErrorLogSize(struct handle *h, size_t *n) { *n = 0; return 0; }
int nvPTXCompilerGetErrorLog(struct handle *h, char *b) { return 0; }
