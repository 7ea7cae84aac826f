// libm: calls all functions of libm of the shape double f(double), and some others,
// with many values, and prints a hash of the bits of the results. If argv[1] is
// given, the tracer hooks all of libm first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *names[] = {
	"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp", "exp2",
	"expm1", "exp10", "log", "log2", "log10", "log1p", "logb", "sqrt", "cbrt", "fabs", "ceil", "floor", "trunc",
	"round", "rint", "nearbyint", "erf", "erfc", "tgamma", "lgamma", "j0", "j1", "y0", "y1", "significand",
};
static const char *names2[] = {"pow", "atan2", "hypot", "fmod", "remainder", "copysign", "nextafter", "fdim", "fmax", "fmin", "drem"};

static uint64_t hash(uint64_t h, double d)
{
	uint64_t v;
	memcpy(&v, &d, 8);
	if (d != d)
		v = 1; // any NaN
	return (h ^ v) * 0x100000001b3ull;
}

int main(int argc, char **argv)
{
	uint64_t h = 14695981039346656037ull;
	if (argc > 1)
		syscall(SYS_ioctl, 0xfffffffeu, 0x4d41524bu, 0, sin, 0);
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		double (*f)(double) = (double (*)(double))dlsym(RTLD_DEFAULT, names[i]);
		for (double x = -3; f && x < 20; x += 0.37)
			h = hash(h, f(x));
	}
	for (unsigned i = 0; i < sizeof names2 / sizeof *names2; i++) {
		double (*f)(double, double) = (double (*)(double, double))dlsym(RTLD_DEFAULT, names2[i]);
		for (double x = -3; f && x < 20; x += 0.77)
			h = hash(h, f(x, 20 - x));
	}
	for (double x = 0.1; x < 5; x += 0.3) {
		int e, q;
		double s, c, ip;
		sincos(x, &s, &c);
		h = hash(hash(h, s), c);
		h = hash(hash(h, frexp(x, &e)), e);
		h = hash(hash(h, modf(x, &ip)), ip);
		h = hash(hash(h, remquo(x, 0.7, &q)), q);
		h = hash(hash(h, ldexp(x, 3)), fma(x, x, 1));
		h = hash(hash(h, sinf(x)), powf(x, 1.5f));
		h = hash(hash(h, jn(2, x)), (double)sinl(x));
	}
	printf("%016lx\n", h);
	return 0;
}
