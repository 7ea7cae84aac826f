package nvattach

import _ "embed" // for Header

// The names by which C sources include [Header] and [HostHeader].
const (
	HeaderName     = "nvtrace_gpu.bpf.h"
	HostHeaderName = "nvtrace_host.bpf.h"
)

// Header is what authors of programs in C include: contexts, helpers and map types.
//
//go:embed include/nvtrace_gpu.bpf.h
var Header string

// HostHeader has what programs on the host need beside that.
//
//go:embed include/nvtrace_host.bpf.h
var HostHeader string
