package jump

import (
	"slices"
	"strings"
)

// Functions that do what they do by where they return to: the loader's take the library whose code
// that is for the one that has called them (RTLD_NEXT, RUNPATH, namespaces), and a profiler's count it.
var callerNames = []string{"dlopen", "dlmopen", "dlsym", "dlvsym", "dl_iterate_phdr", "mcount", "fentry__"}

// looksAtCaller reports whether a function of that name is one of them.
func looksAtCaller(name string) bool {
	name, _, _ = strings.Cut(name, "@")
	return slices.Contains(callerNames, strings.TrimLeft(name, "_"))
}
