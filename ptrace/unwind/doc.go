// Package unwind lists the callers of a thread that stands still, by what compilers say of
// each function for exceptions (.eh_frame), which programs without frame pointers have, too.
//
// What is read is the process's memory, files that it has mapped included: so it works for
// files that are deleted, for the vdso, in other mount namespaces. A table finds the row for
// one address when it is asked for: the tables of a process with CUDA's libraries would take a
// second and hundreds of megabytes, and few addresses are ever on a stack. [Process] keeps the
// rows that it has met.
//
// Where code has no description, as code that is compiled while the program runs, the frame
// pointer is followed. All of it is the program's word: a hostile program gets a wrong list,
// never a long one or a hang.
package unwind
