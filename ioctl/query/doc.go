// Package query asks the kernel driver what it knows of processes, by ioctls of our own, as nvidia-smi does: how much
// memory of each GPU a process has. Nothing in a process's own memory tells that.
//
// It opens the driver's nodes and takes the driver's locks for the time of the question. Where a driver hangs, so does who
// asks it: nothing asks unless it was told to.
package query
