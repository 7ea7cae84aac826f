package channel

import (
	"encoding/hex"
	"strings"
	"testing"
)

// TestSharedData reads the beginning of a page of an H200 whose nvidia-smi said that 1883 MiB of 143771 were used.
func TestSharedData(t *testing.T) {
	const text = "0e0c0000 000000ff 00000010 008ee20f 0e0c0000 000000ff 00003ff3 22000000 0000927d 22000000"
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	s, ok := ParseSharedData(b)
	if used := (s.Memory - s.FreeMemory + 1<<19) >> 20; !ok || used != 1883 || s.Memory>>20 != 143155 {
		t.Errorf("%+v, %d MiB used, %v", s, used, ok)
	}
	b[16] |= 1 // being written
	if _, ok := ParseSharedData(b); ok {
		t.Error("what is being written is believed")
	}
	if _, ok := ParseSharedData(make([]byte, SharedDataSize)); ok {
		t.Error("an empty page is believed")
	}
}
