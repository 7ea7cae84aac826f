package nvattach

import _ "embed" // for Header

// HeaderName is the name by which C sources include [Header].
const HeaderName = "nvtrace_gpu.bpf.h"

// Header is what authors of programs in C include: contexts, helpers and map types.
//
//go:embed include/nvtrace_gpu.bpf.h
var Header string
