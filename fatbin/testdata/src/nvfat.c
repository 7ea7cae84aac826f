// Packs a cubin and PTX with libnvFatbin: nvfat LIBRARY OUT ARCH CUBIN PTX OPTIONS...
// The wheels of CUDA 12 have this library and no fatbinary tool.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static char *slurp(const char *name, size_t *n) {
	FILE *f = fopen(name, "rb");
	if (!f) { perror(name); exit(1); }
	fseek(f, 0, SEEK_END);
	*n = ftell(f);
	rewind(f);
	char *b = calloc(1, *n + 1);
	if (fread(b, 1, *n, f) != *n) exit(1);
	fclose(f);
	return b;
}

#define CALL(ret, name, ...) ((ret (*)())dlsym(lib, name))(__VA_ARGS__)
#define OK(name, ...) do { int r = CALL(int, name, __VA_ARGS__); if (r) { fprintf(stderr, "%s: %d\n", name, r); return 1; } } while (0)

int main(int argc, char **argv) {
	void *lib = dlopen(argv[1], RTLD_NOW), *h;
	if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
	size_t n;
	OK("nvFatbinCreate", &h, (const char **)argv + 6, (size_t)(argc - 6));
	char *cubin = slurp(argv[4], &n);
	OK("nvFatbinAddCubin", h, cubin, n, argv[3], "kernels.cu");
	char *ptx = slurp(argv[5], &n);
	OK("nvFatbinAddPTX", h, ptx, n + 1, argv[3], "kernels.cu", "");
	OK("nvFatbinSize", h, &n);
	char *out = malloc(n);
	OK("nvFatbinGet", h, (void *)out);
	FILE *f = fopen(argv[2], "wb");
	return fwrite(out, 1, n, f) == n && fclose(f) == 0 ? 0 : 1;
}
