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

// isWalked reports whether a function of that name is one of the builtins that V8 has compiled into a program
// (Node.js, browsers). V8 goes through its stacks by return addresses, and ends the program at one that is in
// no code of its own.
func isWalked(name string) bool { return strings.HasPrefix(name, "Builtins_") }
