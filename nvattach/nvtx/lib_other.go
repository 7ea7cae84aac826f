//go:build !amd64

package nvtx

// library is empty: there is none for this machine.
var library []byte
