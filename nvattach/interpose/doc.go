// Package interpose is nvtrace's view from inside a program: a shim that
// LD_PRELOAD puts into every process, and the server that it talks to.
//
// The shim (shim/, C) wraps dlopen, dlmopen, dlsym, dlvsym, dladdr and, through
// these, through cuGetProcAddress, and through the tables by which libraries are
// linked, the functions of the CUDA driver that load, link and unload code, look
// kernels up, launch them, and make contexts. It knows nothing but their argument
// lists; what a call means is decided here and above.
//
// It is not the guarantee that every image is captured: a program can go past any
// preload. With a supervisor, it is the independent second view ([ModeObserve]):
// it tells each call, never an image. Where a supervisor is impossible, it is the
// only view ([ModeCapture]): each image is sent, once, before the driver reads it.
//
// What the program sees stays what it was: its output, addresses that dladdr
// explains, dlerror, errno, the order of search, weak references. nvtrace's death
// makes the shim silent, and the program goes on.
//
// Nothing that comes through the socket is trusted: see [Server].
package interpose

//go:generate go run ./internal/gen
