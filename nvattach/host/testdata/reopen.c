// Opens and closes a library again and again.
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int sum = 0;
	for (int i = 0; i < 6; i++) {
		void *lib = dlopen(argv[1], RTLD_NOW);
		if (!lib)
			return 1;
		sum += ((int (*)(int))dlsym(lib, "in_library"))(i);
		if (i == 3 && fork() == 0) {
			dlclose(lib);
			lib = dlopen(argv[1], RTLD_NOW);
			return ((int (*)(int))dlsym(lib, "in_library"))(i) != 2 * i;
		}
		dlclose(lib);
	}
	int status;
	wait(&status);
	printf("%d %d\n", sum, status);
	return 0;
}
