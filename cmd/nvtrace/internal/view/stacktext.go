package view

import (
	"fmt"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/traces"
)

// nativeText is a stack as text, of the innermost calls.
func nativeText(frames []traces.StackFrame) string {
	const most = 16
	var list []string
	for i := range frames[:min(len(frames), most)] {
		switch f := &frames[i]; {
		case f.Language == traces.LanguageNative && f.Func != "":
			list = append(list, fatbin.DemangleShort(f.Func))
		default:
			list = append(list, f.String())
		}
	}
	return strings.Join(list, " < ")
}

// pythonText is what of a stack is Python, as text, of the innermost calls.
func pythonText(frames []traces.StackFrame) string {
	const most = 8
	var list []string
	for _, f := range frames {
		if f.Language == "python" && len(list) < most {
			list = append(list, fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Func))
		}
	}
	return strings.Join(list, " < ")
}
