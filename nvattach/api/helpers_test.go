package api

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"

	"nvtrace/traces"
)

func itoa(n int) string { return strconv.Itoa(n) }

func readLines(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// words are 64-bit numbers as they lie in memory.
func words(v ...uint64) (b []byte) {
	for _, w := range v {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// call makes the event of a call on thread 1 of process 1.
func call(at int64, file, name string, args ...uint64) *traces.Event {
	ev := &traces.Event{Kind: traces.KindCall, PID: 1, TID: 1, Time: at, FD: -1, Path: file, Name: name}
	copy(ev.Args[:], args)
	if len(args) > 6 {
		ev.Mem = append(ev.Mem, traces.Seg{Addr: 0x7ffe0008, Len: uint32(8 * (len(args) - 6)), In: words(args[6:]...)})
	}
	return ev
}

// ret makes the event of its return.
func ret(c *traces.Event, dur, result int64) *traces.Event {
	return &traces.Event{Kind: traces.KindReturn, PID: c.PID, TID: c.TID, Time: c.Time, Dur: dur, FD: -1, Name: c.Name, Ret: result}
}

func in(ev *traces.Event, addr uint64, b []byte) *traces.Event {
	ev.Mem = append(ev.Mem, traces.Seg{Addr: addr, Len: uint32(len(b)), In: b})
	return ev
}

func out(ev *traces.Event, addr uint64, b []byte) *traces.Event {
	ev.Mem = append(ev.Mem, traces.Seg{Addr: addr, Len: uint32(len(b)), Out: b})
	return ev
}

func text(s string) []byte { return append([]byte(s), 0) }
