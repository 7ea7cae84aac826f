package record

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestGPUUUIDs(t *testing.T) {
	dir := t.TempDir()
	for bus, text := range map[string]string{
		"0000:19:00.0": "Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\nGPU UUID: \t GPU-51a0a5ad-3d4d-0f0e-8f5e-7c0b3c1d2e3f\nVideo BIOS: \t 96.00\n",
		"0000:3b:00.0": "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????-????-????-????????????\n",
		"0000:4c:00.0": "GPU UUID: \t GPU-00000000-0000-0000-0000-000000000001\n",
	} {
		if err := os.Mkdir(filepath.Join(dir, bus), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, bus, "information"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "0000:5d:00.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := []string{"GPU-51a0a5ad-3d4d-0f0e-8f5e-7c0b3c1d2e3f", "GPU-00000000-0000-0000-0000-000000000001"}
	if got := gpuUUIDs(dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := gpuUUIDs(filepath.Join(dir, "none")); got != nil {
		t.Errorf("without a driver: %q", got)
	}
}
