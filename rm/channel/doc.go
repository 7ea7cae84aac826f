// Package channel knows what a program and an NVIDIA GPU say to each other between ioctls: the
// entries of a channel's ring (GPFIFO), the methods in its pushbuffers, the queue meta data (QMD)
// that describes a kernel's launch, and the semaphores that the GPU releases when work is done.
//
// It turns bytes into meaning and nothing else: it doesn't know where they come from, and what it
// is given may be anything. It also writes them, for programs that launch kernels themselves
// ([QMD.SetLaunch], [Writer], [Entry.Encode]). Numbers and names are those of NVIDIA's public class
// headers (facts, with their provenance), from Volta to Blackwell.
//
// A channel, from outside in:
//
//	USERD   PUT, GET, GP_PUT, GP_GET        [UserData]
//	ring    entries of eight bytes          [Entry]: address and length of a piece of pushbuffer
//	pieces  headers, each with its data     [Commands], named by a [Class]
//	work    launches, copies, releases      [Work]: what the methods of a piece amount to
package channel
