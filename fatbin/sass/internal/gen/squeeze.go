package main

import (
	"bytes"
	"compress/flate"
	"os"
)

// squeeze compresses a facts file as it is.
func squeeze(facts, out string) error {
	b, err := os.ReadFile(facts)
	if err != nil {
		return err
	}
	var z bytes.Buffer
	w, err := flate.NewWriter(&z, flate.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, z.Bytes(), 0o666)
}
