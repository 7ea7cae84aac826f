// A thread maps the driver, gives it an image and unmaps it again, while another one forks:
// children have the driver's code as it was at any moment of that. churn DRIVER.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAPPERS = 1, TIMES = 180, FORKS = 200 };

static const char *driver;
static int failed;

static void *map(void *number) {
	for (int i = 0; i < TIMES; i++) {
		char image[64];
		void *module, *d = dlopen(driver, RTLD_NOW);
		int (*load)(void **, const void *) = d ? (int (*)(void **, const void *))dlsym(d, "cuModuleLoadData") : 0;
		snprintf(image, sizeof image, "// %ld.%d\n.version 7.0\n.target sm_80\n", (long)number, i);
		if (!load || load(&module, image) || dlclose(d))
			__atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
	}
	return 0;
}

int main(int argc, char **argv) {
	pthread_t t[MAPPERS];
	driver = argv[1];
	for (long i = 0; i < MAPPERS; i++)
		pthread_create(&t[i], 0, map, (void *)i);
	for (int i = 0; i < FORKS; i++) {
		int status = -1;
		pid_t child = fork();
		if (child == 0)
			_exit(3);
		waitpid(child, &status, 0);
		failed += WEXITSTATUS(status) != 3;
	}
	for (int i = 0; i < MAPPERS; i++)
		pthread_join(t[i], 0);
	return failed != 0;
}
