package view

import (
	"os"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach/api"
	"nvtrace/ptrace/outside"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// whereRank says at which line, or in which functions, a process of this host is that is traced; "": it can't tell. Nothing
// is stopped.
func whereRank(boot string, pid int32) string {
	own, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || boot == "" || strings.TrimSpace(string(own)) != boot {
		return ""
	}
	if tracer, ok := proc.StatusNumber(int(pid), "TracerPid"); !ok || tracer == 0 {
		return "" // another process has the number now
	}
	return placeOf(int(pid))
}

// placeOf says where a process's main thread is, or the first one that runs Python.
func placeOf(pid int) string {
	threads, err := outside.Threads(pid, false)
	if err != nil {
		return ""
	}
	var at *outside.Thread
	for i := range threads {
		switch t := &threads[i]; {
		case at == nil && (t.TID == pid || len(t.Python) > 0), at != nil && len(at.Python) == 0 && len(t.Python) > 0:
			at = t
		}
	}
	if at == nil {
		return ""
	}
	var frames []traces.StackFrame
	for _, f := range at.Python {
		frames = append(frames, traces.StackFrame{Language: "python", File: f.File, Func: f.Func, Line: f.Line})
	}
	if frames == nil {
		for _, f := range at.Native {
			frames = append(frames, traces.StackFrame{Language: traces.LanguageNative, File: f.File, Func: f.Name})
		}
	}
	return api.OwnLine(frames, fatbin.DemangleShort)
}
