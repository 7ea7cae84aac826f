package live

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/rm/channel"
	"nvtrace/traces"
)

// TestPushbufferFiles prints words that somebody has saved, and refuses files that have none.
func TestPushbufferFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	var words []byte
	var w channel.Writer
	host, compute := channel.ClassOf(0xc86f), channel.ClassOf(0xcbc0)
	w.Acquire(host, 0, channel.Semaphore{Address: 0x2_0400_1000, Payload: 7})
	w.Release(compute, 1, channel.Semaphore{Address: 0x2_0400_2000, Payload: 8})
	for _, v := range w.Words {
		words = binary.LittleEndian.AppendUint32(words, v)
	}
	empty := filepath.Join(dir, "empty.nvt")
	r, err := clitest.CreateRecording(empty, &traces.Header{Schema: traces.SchemaVersion, PID: 7})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		status int
		want   string
	}{
		{file("words", words), cli.ExitOK, "; wait until 0x204001000"},
		{file("odd", words[:len(words)-2]), cli.ExitFailed, "is neither a recording nor words of 4 bytes"},
		{file("nothing", nil), cli.ExitFailed, "is neither a recording nor words of 4 bytes"},
		{empty, cli.ExitFailed, "has no pushbuffers: nvtrace pushbuffer -o FILE PID records"},
		{filepath.Join(dir, "none"), cli.ExitFailed, "no such file"},
	} {
		status, text, errs := clitest.Run(t, PushbufferVerb, test.name)
		if status != test.status || !strings.Contains(text+errs, test.want) {
			t.Errorf("%s: status %d, %s%s", test.name, status, text, errs)
		}
	}
}
