package interpose

import _ "embed"

// shimBytes is libnvtrace.so. `go generate` builds it from the sources in shim/.
//
//go:embed shim/zlibnvtrace_amd64.so
var shimBytes []byte
