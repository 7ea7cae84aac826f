package live

import (
	"bytes"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/ptrace/proc"
)

func TestLive(t *testing.T) {
	const text = `200600000-200800000 rw-s 00000000 00:06 471   /dev/nvidia0
200800000-204000000 rw-s 00000000 00:06 470   /dev/nvidiactl
7f0000000000-7f0000010000 -w-s 00000000 00:06 471   /dev/nvidia0 (deleted)
7f4000000000-7f4000200000 rw-s 7f4000000000 00:06 480   /dev/nvidia-uvm
7f5000000000-7f5000001000 r--p 00000000 08:01 99   /lib/x/libcuda.so.1
7f6000000000-7f6000001000 rw-p 00000000 00:00 0
`
	r := liveReportOf(7, proc.ParseMaps([]byte(text)))
	var buf bytes.Buffer
	if err := r.write(&cli.Env{Stdout: &buf}); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "live.txtar", []txtar.File{{Name: "maps --live", Data: buf.Bytes()}})
}
