// Package cuda has numbers of CUDA's interfaces by the names that cuda.h and
// driver_types.h have for them, made of the facts of package api. Names are spelled
// as there, but for a capital letter in front.
package cuda

//go:generate go run nvtrace/nvattach/api/internal/gen/enums ../facts zenums.go
