// Package api knows the programming interfaces through which programs use a
// GPU: CUDA's driver API, its runtime API and the toolkit's libraries. It gives
// the recorded calls of their functions ([traces.KindCall], [traces.KindReturn])
// a meaning: names and types of parameters, results, what a pointer points to,
// which call an event happened during.
//
// The prototypes are facts taken from NVIDIA's public headers (nvattach/api/facts
// says which), by releases of the toolkit, packed by nvattach/api/internal/gen.
// Parameters are found by the calling convention of x86-64 System V.
//
// Nothing here records anything, prints or knows of a system call's meaning. A
// function, library or value that is not in the tables is a value like any
// other, shown as the six registers that were recorded.
package api
