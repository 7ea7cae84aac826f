package nvtx

import _ "embed"

// library is the compiled lib/nvtx.c.
//
//go:embed lib/zlibnvtrace-nvtx_amd64.so
var library []byte
