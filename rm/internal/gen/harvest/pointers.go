package harvest

import (
	"regexp"
	"strings"

	"nvtrace/rm/internal/gen/facts"
)

var (
	comment    = regexp.MustCompile(`(?s)/\*.*?\*/`)
	lineRemark = regexp.MustCompile(`//[^\n]*`)
	paramsCast = regexp.MustCompile(`\(\(\w+\s*\*\)\s*\(?p(?:RmCtrlParams->p)?Params\)?\)->|\b(?:userParams|pParamsUser|pParams)->`)
	copyCase   = regexp.MustCompile(`case (NV\w+):`)
	copyParams = regexp.MustCompile(`CHECK_PARAMS_OR_RETURN\(\s*\w+\s*,\s*(\w+)\)`)
	converter  = regexp.MustCompile(`V2_CONVERTER\(_(NV\w+)\)\s*\(`)
)

const copyInit = "RMAPI_PARAM_COPY_INIT("

// pointers reads which pointers in control parameters the driver follows: the
// calls that set up their copies, the converters of the older list controls, and
// two that are copied elsewhere.
func (h *harvest) pointers() {
	src := comment.ReplaceAllString(h.read("src/nvidia/src/kernel/rmapi/embedded_param_copy.c"), "")
	if i := strings.Index(src, "embeddedParamCopyOut"); i > 0 {
		src = src[:i] // the same pointers again, on the way out
	}
	cases := copyCase.FindAllStringSubmatchIndex(src, -1)
	for i, m := range cases {
		end := len(src)
		if i+1 < len(cases) {
			end = cases[i+1][0]
		}
		h.copies(src[m[2]:m[3]], src[m[1]:end])
	}
	h.converters()
	for _, c := range []string{"BSP", "MSENC"} {
		h.pointer("NV0080_CTRL_CMD_"+c+"_GET_CAPS", facts.Embedded{Params: "NV0080_CTRL_" + c + "_GET_CAPS_PARAMS", Field: "capsTbl", Count: "capsTblSize", Elem: "1", Dir: "out"})
	}
	for _, m := range []string{"pDriverVersionBuffer", "pVersionBuffer", "pTitleBuffer"} {
		h.pointer("NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION", facts.Embedded{Params: "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS", Field: m, Count: "sizeOfStrings", Elem: "1", Dir: "out"})
	}
}

// pointer adds a pointer that is known by hand, if the version has its struct.
func (h *harvest) pointer(cmd string, e facts.Embedded) {
	if h.f.Types[e.Params].Size > 0 {
		h.f.Embedded[cmd] = append(h.f.Embedded[cmd], e)
	}
}

// copies reads the calls in one case.
func (h *harvest) copies(cmd, body string) {
	params := ""
	if m := copyParams.FindStringSubmatch(body); m != nil {
		params = m[1]
	}
	for {
		j := strings.Index(body, copyInit)
		if j < 0 {
			return
		}
		body = body[j+len(copyInit):]
		args, n := splitArgs(body)
		tail := body[n:]
		body = tail
		if k := strings.Index(tail, copyInit); k >= 0 {
			tail = tail[:k]
		}
		if len(args) != 5 {
			h.fail("embedded_param_copy.c: %s: %d arguments", cmd, len(args))
			continue
		}
		strip := func(s string) string { return paramsCast.ReplaceAllString(s, "") }
		h.f.Embedded[cmd] = append(h.f.Embedded[cmd], facts.Embedded{
			Params: params, Field: strip(args[2]), Count: strip(args[3]), Elem: strip(args[4]), Dir: copyDirection(args[0], tail),
		})
	}
}

// copyDirection says which copies the flags that follow a call leave out.
func copyDirection(slot, tail string) string {
	skips := func(flag string) bool {
		return regexp.MustCompile(regexp.QuoteMeta(slot) + `\.flags\s*\|=\s*RMAPI_PARAM_COPY_FLAGS_SKIP_` + flag).MatchString(tail)
	}
	in, out := skips("COPYIN"), skips("COPYOUT")
	switch {
	case in && out: // one of the two, as a flag in the parameters says
		return "by-flag"
	case in:
		return "out"
	case out:
		return "in"
	}
	return "inout"
}

func (h *harvest) converters() {
	src := h.read("src/nvidia/interface/deprecated/rmapi_deprecated_control.c")
	idx := converter.FindAllStringSubmatchIndex(src, -1)
	for i, m := range idx {
		end := len(src)
		if i+1 < len(idx) {
			end = idx[i+1][0]
		}
		body := src[m[1]:end]
		_, call, ok := strings.Cut(body, "CONVERT_TO_V2(")
		if !ok {
			continue
		}
		a, _ := splitArgs(lineRemark.ReplaceAllString(call, ""))
		if len(a) != 10 || a[1] == "oldParamsType" { // the macro's own definition
			continue
		}
		e := facts.Embedded{Params: a[1], Field: a[3], Count: a[5], Elem: "1", Dir: "inout"}
		if a[6] == "NV_TRUE" {
			e.Elem = "sizeof(" + a[7] + ")"
		}
		switch {
		case a[8] != "NV_TRUE":
			e.Dir = "out"
		case a[9] != "NV_TRUE":
			e.Dir = "in"
		}
		cmd := src[m[2]:m[3]]
		h.f.Embedded[cmd] = append(h.f.Embedded[cmd], e)
	}
}

// splitArgs splits the arguments of a call up to its closing parenthesis.
func splitArgs(s string) (args []string, end int) {
	depth, start := 1, 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return append(args, strings.Join(strings.Fields(s[start:i]), " ")), i
			}
		case ',':
			if depth == 1 {
				args = append(args, strings.Join(strings.Fields(s[start:i]), " "))
				start = i + 1
			}
		}
	}
	return args, len(s)
}
