// A compiler library that says of the kernel k what tests want: 10 registers, and
// 90 and a stack of 8 bytes where a program is in it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct handle { int woven, bad; char info[512]; };

int nvPTXCompilerGetVersion(unsigned *major, unsigned *minor) { *major = 13; *minor = 1; return 0; }

int nvPTXCompilerCreate(struct handle **h, size_t n, const char *ptx)
{
	*h = calloc(1, sizeof **h);
	(*h)->woven = strstr(ptx, "red.") != NULL;
	(*h)->bad = (*h)->woven && strstr(ptx, "refuse") != NULL;
	return 0;
}

int nvPTXCompilerCompile(struct handle *h, int n, const char *const *options)
{
	const char *target = "none";
	for (int i = 0; i < n; i++)
		if (strncmp(options[i], "--gpu-name=", 11) == 0)
			target = options[i] + 11;
	snprintf(h->info, sizeof h->info,
		"ptxas info    : Compiling entry function 'k' for '%s'\n"
		"ptxas info    : Function properties for k\n"
		"    %d bytes stack frame, %d bytes spill stores, 4 bytes spill loads\n"
		"ptxas info    : Used %d registers, used 0 barriers, 65536 bytes smem\n", target, h->woven ? 8 : 0, h->woven ? 16 : 0,
		h->woven ? 90 : 10);
	return h->bad ? 5 : 0;
}

int nvPTXCompilerGetCompiledProgramSize(struct handle *h, size_t *n) { *n = 4; return 0; }
int nvPTXCompilerGetCompiledProgram(struct handle *h, char *b) { memcpy(b, "none", 4); return 0; }
int nvPTXCompilerGetInfoLogSize(struct handle *h, size_t *n) { *n = strlen(h->info); return 0; }
int nvPTXCompilerGetInfoLog(struct handle *h, char *b) { memcpy(b, h->info, strlen(h->info) + 1); return 0; }
int nvPTXCompilerGetErrorLogSize(struct handle *h, size_t *n) { *n = h->bad ? 12 : 0; return 0; }
int nvPTXCompilerGetErrorLog(struct handle *h, char *b) { memcpy(b, "fatal: k bad", 12); return 0; }
