package run

import (
	"bytes"
	"errors"
	"strings"

	"nvtrace/nvattach/api"
	"nvtrace/ptrace/agent"
)

// startFlag is --start-on=NVTX:NAME or --start-on=cudaProfilerStart.
type startFlag struct {
	text string
	name string // of a range or mark; "": the profiler's start
}

// nvtxPrefix begins a value that names a range.
const nvtxPrefix = "NVTX:"

// String implements flag.Value.
func (f *startFlag) String() string { return f.text }

// Set implements flag.Value.
func (f *startFlag) Set(text string) error {
	name, nvtx := strings.CutPrefix(text, nvtxPrefix)
	if text != "cudaProfilerStart" && (!nvtx || name == "") {
		return errors.New("want NVTX:NAME or cudaProfilerStart")
	}
	if f.text = text; !nvtx {
		name = ""
	}
	f.name = name
	return nil
}

func (f *startFlag) given() bool { return f.text != "" }

// library returns the one that the call is of.
func (f *startFlag) library() api.Library {
	if f.name != "" {
		return api.NVTX
	}
	return api.Driver // in which that of the runtime ends
}

// is reports whether a call is the one.
func (f *startFlag) is(rec *agent.Record) bool {
	if rec.Hook == nil {
		return false
	}
	if f.name == "" {
		return rec.Hook.Name == "cuProfilerStart" || rec.Hook.Name == "cudaProfilerStart"
	}
	at := 0 // the argument that is the text
	switch rec.Hook.Name {
	case "nvtxMark", "nvtxRangePush":
	case "nvtxRangeStart":
		at = 1
	default:
		return false
	}
	for i := range rec.Segs {
		if s := &rec.Segs[i]; s.Addr == rec.Args[at] {
			text, _, _ := bytes.Cut(s.In, []byte{0})
			return string(text) == f.name
		}
	}
	return false
}
