// nvrtcc: compiles one CUDA source to PTX with a given libnvrtc.
//
//	nvrtcc LIBNVRTC NAME SOURCE OUTPUT [OPTION...]
//
// NAME is the file name that debug information will carry. The library is opened at run time and its few functions are
// declared here, so no toolkit header is needed and one binary serves every version.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct program *program;

static void *lib;

static void *need(const char *name)
{
	void *p = dlsym(lib, name);
	if (!p) {
		fprintf(stderr, "nvrtcc: %s\n", dlerror());
		exit(1);
	}
	return p;
}

static char *slurp(const char *path)
{
	FILE *f = fopen(path, "rb");
	if (!f) {
		perror(path);
		exit(1);
	}
	fseek(f, 0, SEEK_END);
	long n = ftell(f);
	rewind(f);
	char *s = calloc(n + 1, 1);
	if (!s || fread(s, 1, n, f) != (size_t)n) {
		fprintf(stderr, "nvrtcc: cannot read %s\n", path);
		exit(1);
	}
	fclose(f);
	return s;
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: nvrtcc LIBNVRTC NAME SOURCE OUTPUT [OPTION...]\n");
		return 2;
	}
	lib = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
	if (!lib) {
		fprintf(stderr, "nvrtcc: %s\n", dlerror());
		return 1;
	}
	int (*create)(program *, const char *, const char *, int, const char *const *, const char *const *) = need("nvrtcCreateProgram");
	int (*compile)(program, int, const char *const *) = need("nvrtcCompileProgram");
	int (*log_size)(program, size_t *) = need("nvrtcGetProgramLogSize");
	int (*get_log)(program, char *) = need("nvrtcGetProgramLog");
	int (*ptx_size)(program, size_t *) = need("nvrtcGetPTXSize");
	int (*get_ptx)(program, char *) = need("nvrtcGetPTX");
	program p;
	size_t n = 0;
	int rc = create(&p, slurp(argv[3]), argv[2], 0, NULL, NULL);
	if (rc == 0)
		rc = compile(p, argc - 5, (const char *const *)argv + 5);
	if (rc) {
		if (!log_size(p, &n) && n) {
			char *log = calloc(n + 1, 1);
			if (log && !get_log(p, log))
				fputs(log, stderr);
		}
		fprintf(stderr, "nvrtcc: %s: error %d\n", argv[3], rc);
		return 1;
	}
	if (ptx_size(p, &n) || n == 0)
		return 1;
	char *out = calloc(n + 1, 1);
	if (!out || get_ptx(p, out))
		return 1;
	FILE *f = fopen(argv[4], "wb");
	if (!f) {
		perror(argv[4]);
		return 1;
	}
	// NVRTC counts the terminating NUL in the size; the file is text.
	fwrite(out, 1, n - 1, f);
	return fclose(f) ? 1 : 0;
}
