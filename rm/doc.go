// Package rm holds the vocabulary of NVIDIA's resource manager, the part of the
// kernel driver that programs talk to through /dev/nvidia*: escapes, control
// commands, object classes, UVM and display requests, status codes, and the
// layout of every structure that crosses the border, for each driver version.
// It also keeps the tree of objects that such traffic builds up ([Tree]).
//
// It knows names, numbers and offsets. It does not know where bytes come from:
// which of them to copy, and how to print them, is package ioctl's business.
//
// The tables are facts read from the declarations of NVIDIA's open kernel
// modules (rm/facts, with their provenance), packed into one embedded binary.
// Nothing of it is decoded before a program asks for a version with [Load], and
// each structure only when it is first looked up.
//
// # Stability
//
// Programs may import this package. Before version 1.0 names may still change; the changelog says
// which. Driver versions are added, never taken away.
package rm
