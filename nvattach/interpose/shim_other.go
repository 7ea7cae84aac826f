//go:build !amd64

package interpose

// shimBytes is empty: there is no shim for this machine.
var shimBytes []byte
