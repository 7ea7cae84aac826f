// Package hostrun proves programs for the host safe, compiles them to machine code ([Program]), and
// runs them by the interpreter at a stop of the traced thread ([Runner]). A [Join] adds what kernels
// counted in their part of a map to the host's part.
//
// It knows nothing of where programs are attached and of how a thread is stopped: that is package
// host's.
package hostrun
