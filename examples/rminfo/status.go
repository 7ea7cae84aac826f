package main

import "fmt"

// statusName is NVIDIA's name of a status.
func statusName(s uint32) string { return fmt.Sprintf("NV_STATUS(%#x)", s) }
