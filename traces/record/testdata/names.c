// A thread that names itself, and one whose name is too long, and can't be read.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>

static void *named(void *name)
{
	pthread_setname_np(pthread_self(), name);
	return 0;
}

static void *odd(void *unused)
{
	prctl(PR_SET_NAME, "a name of more than 15 bytes");
	prctl(PR_SET_NAME, 8);
	prctl(PR_SET_DUMPABLE, 1); // no name
	return unused;
}

int main(void)
{
	pthread_t t;
	pthread_create(&t, 0, named, "worker 1");
	pthread_join(t, 0);
	pthread_create(&t, 0, odd, 0);
	pthread_join(t, 0);
	return 0;
}
