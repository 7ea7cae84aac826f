// Command gen compiles the helper and packs it, if its sources have changed.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"nvtrace/internal/gen/built"
)

func main() {
	if err := built.Make("helper/zstamp.txt", []string{"helper/*.c", "helper/*.h", "helper/*.sh"}, []string{"zptxjit_amd64.gz"}, compile); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func compile() error {
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
	packed, err := built.Gzip(image)
	if err != nil {
		return err
	}
	return os.WriteFile("zptxjit_amd64.gz", packed, 0o644)
}
