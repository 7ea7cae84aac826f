// Command gen compiles ptxjit.c and stores it with the hash of its sources.
// Where there is no gcc it says so and leaves the file alone.
package main

import (
	"bytes"
	"compress/gzip"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"nvtrace/nvattach/jit/internal/stamp"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("nvattach/jit: ")
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	const out = "zptxjit_amd64.gz"
	sum, err := stamp.Sources("helper")
	if err != nil {
		return err
	}
	if have, err := stamp.Read(out); err == nil && have == sum {
		return nil // another compiler would give other bytes of the same meaning
	}
	dir, err := os.MkdirTemp("", "ptxjit")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "ptxjit")
	cmd := exec.Command("sh", "helper/build.sh", bin)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	image, err := os.ReadFile(bin)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	zw, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	zw.Comment = sum
	if _, err := zw.Write(image); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}
