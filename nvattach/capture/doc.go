// Package capture keeps every code image that a traced program gives to the CUDA
// driver, and proves that it kept them all, or says what escaped.
//
// # The guarantee
//
// A user-mode CUDA driver gets code only through the loaders that it exports, and
// through slots of hidden tables that its exported cuGetExportTable hands out.
// Whatever route a program takes to such a function (a link, dlsym, dlmopen,
// RTLD_DEEPBIND, cuGetProcAddress, its own ELF parser, a static executable), it
// ends at the function's first instruction. [Capture] puts a breakpoint there
// while the program is stopped in the very mmap that makes the driver executable,
// before any thread can have called it. Drivers are known by what they export,
// never by their names.
//
// At a breakpoint the image is copied to the module store under its SHA-256, and
// the driver is handed the copy, not the program's buffer: bytes that another
// thread writes meanwhile never reach the driver. Images in read-only private
// mappings of a file stay where they are; the file is looked at again at the end.
// What has an unknown format, so that nobody can tell where it ends, stays the
// program's own, and is a gap if the driver takes it.
// Paths are read by the program's own eyes (its root, working directory and
// rights), before and after the call.
//
// # The audit
//
// Lookups of kernels are followed from module to function, so that each kernel
// that is launched can be traced back to a stored image. Where a kernel was found
// by a function that nobody knows (libraries have such slots of hidden tables), the
// driver itself is asked, by cuFuncGetModule or cuKernelGetLibrary, which a thread
// of the program that has come to the driver calls for us. Slots of hidden tables
// that are not known are watched for arguments that are code images. At the end the
// breakpoints, the launches, and what the interposer saw are held together. What
// disagrees is a [traces.KindGap]; a recording without one is complete, as far as
// this covers: processes that talk to the kernel driver without libcuda, and code
// that jumps into the middle of the driver, are outside of it.
//
// # Others' eyes
//
// The simulated GPU is given images itself, and where nothing is traced the interposer
// alone sees them. They feed a [Feed] with what they saw: it keeps the images and makes the
// same events as Capture does, and nobody else makes any.
//
// The package knows the driver's loading and launching functions, and nothing of
// what is in the images; package fatbin sizes them.
package capture
