package main

import "nvtrace/rm"

// statusName is NVIDIA's name of a status, with its number.
func statusName(s uint32) string { return rm.Status(s).String() }
