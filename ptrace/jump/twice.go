package jump

import (
	"slices"
	"strings"
)

// Functions that return more than once for a call: by the program's longjmp or setcontext, or in a
// child that has its parent's stack. Whoever puts another return address in place of theirs has it
// kept by them, or used twice. Their names are those by which compilers know them (gcc's
// special_function_p), with or without underscores before, and swapcontext's.
var twiceNames = []string{"setjmp", "sigsetjmp", "setjmp_syscall", "savectx", "vfork", "getcontext", "swapcontext"}

// returnsTwice reports whether a function of that name does.
func returnsTwice(name string) bool {
	name, _, _ = strings.Cut(name, "@")
	name = strings.TrimLeft(name, "_")
	name = strings.TrimPrefix(name, "libc_")
	return slices.Contains(twiceNames, name)
}
