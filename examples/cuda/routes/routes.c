// Programs that give code to the CUDA driver by one route each. They are what
// nvtrace's capture is tested with: against a driver that logs what it is given
// (no GPU), and against the real one.
//
//   routes ROUTE [FILE]             FILE: an image, or what a route wants of one
//   routes dump FILE.ptx FILE.fatbin  writes the images that are loaded without FILE
//
// The routes are in the table below; the headers hold them by kind.
// Compiled with -DLINKED -lcuda, the routes "linked" and "next" exist, too.
#include "program.h"

#include "find.h"
#include "hidden.h"
#include "hostile.h"
#include "images.h"
#include "loaders.h"
#include "turns.h"

// A route is a way to find the driver's functions (0: it does so itself), whether
// CUDA is initialised first, and what is done then.
struct route {
	const char *name; // one that ends in * stands for all that begin so
	finder find;
	int starts;
	int (*run)(const char *route, const char *file);
};

// Of routes that a name fits, the first is taken.
static const struct route routes[] = {
	// by how functions are found
	{"dlsym", by_dlsym, 1, load_own},
	{"dlmopen", by_dlmopen, 1, load_own},
	{"gpa", by_gpa, 1, load_own},
	{"hand", by_hand, 1, load_own},
	{"memory", 0, 0, by_self},
	{"protect", 0, 0, by_self},
#ifdef LINKED
	{"next", by_next, 1, load_own},
	{"linked", by_dlsym, 1, linked},
#endif
	{"needed", by_dlsym, 1, with_library},
	{"deepbind", by_dlsym, 1, with_library},
	// by loader
	{"image", by_dlsym, 1, load_image},
	{"ex", by_dlsym, 1, load_ex},
	{"fatbin", by_dlsym, 1, load_fatbin},
	{"wrapper2", by_dlsym, 1, load_wrapper2},
	{"file", by_dlsym, 1, load_file},
	{"missing", by_dlsym, 1, load_missing},
	{"libdata", by_dlsym, 1, library_data},
	{"libfile", by_dlsym, 1, library_file},
	{"link", by_dlsym, 1, link_code},
	{"slot*", by_dlsym, 1, slot},
	{"bypass", by_dlsym, 1, bypass},
	{"unknown", by_dlsym, 1, hidden_link},
	{"bad-*", by_dlsym, 1, hostile},
	// by launch
	{"launch-ex", by_dlsym, 1, launch_ex},
	{"launch-graph", by_dlsym, 1, launch_graph},
	{"often*", by_dlsym, 1, launch_often},
	{"found-often", by_dlsym, 1, found_often},
	{"looked-often", by_dlsym, 1, looked_often},
	{"hidden-threads", by_dlsym, 1, hidden_threads},
	{"hidden-again", by_dlsym, 1, hidden_again},
	{"hidden-*", by_dlsym, 1, hidden_find},
	// by time
	{"alone", by_dlsym, 0, alone},
	{"fork", by_dlsym, 0, in_child},
	{"threads*", by_dlsym, 1, threads},
	{"race", by_dlsym, 1, race},
	{"many", by_dlsym, 1, many},
	{"wait", by_dlsym, 1, pause_between},
	{"reopen", by_dlsym, 1, reopen},
	{"overwrite", by_dlsym, 1, overwrite},
};

static int fits(const char *name, const char *route) {
	size_t n = strlen(name);
	return name[n - 1] == '*' ? !strncmp(name, route, n - 1) : !strcmp(name, route);
}

static int run(const char *route, const char *file) {
	for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
		const struct route *r = &routes[i];
		if (!fits(r->name, route))
			continue;
		if (r->find)
			fill(&cu, r->find);
		if (r->starts)
			start();
		return r->run(route, file);
	}
	fprintf(stderr, "routes: no route %s\n", route);
	return 2;
}

int main(int argc, char **argv) {
	const char *route = argc > 1 ? argv[1] : "dlsym";
	if (argc == 4 && !strcmp(route, "dump")) { // the images: as PTX and as a fat binary
		size_t n;
		unsigned char *c = container(&n);
		keep(argv[2], ptx, sizeof ptx - 1);
		keep(argv[3], c, n);
		return 0;
	}
	if (getenv("ROUTES_DRIVER"))
		driver = getenv("ROUTES_DRIVER");
	if (getenv("ROUTES_LOOPS"))
		loops = atoi(getenv("ROUTES_LOOPS"));
	if (!strcmp(route, "execscrub")) { // nothing of the environment but what finds the driver
		char path[4096], which[4096];
		snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", getenv("LD_LIBRARY_PATH") ? getenv("LD_LIBRARY_PATH") : "");
		snprintf(which, sizeof which, "ROUTES_DRIVER=%s", driver);
		char *env[] = {path, which, 0}, *args[] = {argv[0], "dlsym", 0};
		execve("/proc/self/exe", args, env);
		return 5;
	}
	return run(route, argc > 2 ? argv[2] : 0);
}
