// A compiler library that does what the PTX says.
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct handle { char *ptx; size_t n; char options[1024]; };

int nvPTXCompilerGetVersion(unsigned *major, unsigned *minor) { *major = 13; *minor = 1; return 0; }

int nvPTXCompilerCreate(struct handle **h, size_t n, const char *ptx)
{
	*h = calloc(1, sizeof **h);
	(*h)->ptx = malloc(n);
	memcpy((*h)->ptx, ptx, n);
	(*h)->n = n;
	return ptx[n - 1] == 0 ? 0 : 5;
}

int nvPTXCompilerCompile(struct handle *h, int n, const char *const *options)
{
	for (int i = 0; i < n; i++) {
		strcat(h->options, options[i]);
		strcat(h->options, " ");
	}
	if (strstr(h->ptx, "crash"))
		abort();
	if (strstr(h->ptx, "hang"))
		for (;;)
			pause();
	if (strstr(h->ptx, "garbage")) {
		write(1, "garbage", 7);
		_exit(0);
	}
	if (strstr(h->ptx, "memory")) {
		char *p = malloc((size_t)8 << 30);
		if (p == NULL)
			return 2;
		p[0] = 1;
	}
	return strstr(h->ptx, "bad") ? 5 : 0;
}

int nvPTXCompilerGetCompiledProgramSize(struct handle *h, size_t *n) { *n = 7 + strlen(h->options) + strlen(h->ptx); return 0; }
int nvPTXCompilerGetCompiledProgram(struct handle *h, char *b)
{
	char *s = malloc(8 + strlen(h->options) + strlen(h->ptx));
	sprintf(s, "cubin: %s%s", h->options, h->ptx);
	memcpy(b, s, strlen(s));
	return 0;
}
int nvPTXCompilerGetInfoLogSize(struct handle *h, size_t *n) { *n = 5; return 0; }
int nvPTXCompilerGetInfoLog(struct handle *h, char *b) { memcpy(b, "info", 5); return 0; }
int nvPTXCompilerGetErrorLogSize(struct handle *h, size_t *n) { *n = strstr(h->ptx, "bad") ? 28 : 0; return 0; }
int nvPTXCompilerGetErrorLog(struct handle *h, char *b) { memcpy(b, "line 3; fatal: bad\nmore text", 28); return 0; }
