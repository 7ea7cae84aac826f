package harvest

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"nvtrace/rm/internal/gen/facts"
)

var (
	escapeCase   = regexp.MustCompile(`case (NV_ESC_\w+):`)
	escapeParams = regexp.MustCompile(`\b([A-Za-z_]\w*)\s*\*\s*(pApi|pApiAccess|pParams|params|api|pParms|query_intr)\b\s*(=|;)`)
	escapeArray  = regexp.MustCompile(`arg_size / sizeof\((\w+)\)`)
)

// handler is what a case of the driver's dispatch says of an escape.
type handler struct {
	file   string
	params []string
	dev    string
}

// escapes reads the numbers from the headers, and the rest from the bodies of
// the cases that dispatch them.
func (h *harvest) escapes() {
	found := map[string]*handler{}
	for _, file := range []string{"src/nvidia/arch/nvalloc/unix/src/escape.c", "kernel-open/nvidia/nv.c", "src/nvidia/arch/nvalloc/unix/src/osapi.c"} {
		h.escapeCases(file, found)
	}
	// Three are dispatched by other means, in nv.c.
	nv := h.read("kernel-open/nvidia/nv.c")
	if strings.Contains(nv, "arg_cmd == NV_ESC_WAIT_OPEN_COMPLETE") {
		found["NV_ESC_WAIT_OPEN_COMPLETE"] = &handler{file: "nv.c", params: []string{"nv_ioctl_wait_open_complete_t"}}
	}
	fallback := func(name, params, file string) {
		x := found[name]
		if x == nil {
			x = &handler{}
			found[name] = x
		}
		if len(x.params) == 0 {
			x.params = []string{params}
			x.file = cmp.Or(file, x.file)
		}
	}
	fallback("NV_ESC_CHECK_VERSION_STR", "nv_ioctl_rm_api_version_t", "")
	fallback("NV_ESC_IOCTL_XFER_CMD", "nv_ioctl_xfer_t", "nv.c")
	u := h.units["rm"]
	for _, name := range u.pre.Order {
		if !strings.HasPrefix(name, "NV_ESC_") {
			continue
		}
		nr, ok := u.value(name)
		if !ok {
			continue
		}
		e := facts.Escape{Name: name, Nr: nr}
		if x := found[name]; x != nil {
			e.Dev, e.Where = x.dev, x.file
			h.escapeStructs(&e, x.params)
		}
		h.f.Escapes = append(h.f.Escapes, e)
	}
	slices.SortFunc(h.f.Escapes, func(a, b facts.Escape) int { return cmp.Compare(a.Nr, b.Nr) })
}

func (h *harvest) escapeCases(file string, found map[string]*handler) {
	src := h.read(file)
	cases := escapeCase.FindAllStringSubmatchIndex(src, -1)
	for i, m := range cases {
		end := len(src)
		if i+1 < len(cases) {
			end = cases[i+1][0]
		} else if e := strings.Index(src[m[1]:], "default:"); e >= 0 {
			end = m[1] + e
		}
		name, body := src[m[2]:m[3]], src[m[1]:end]
		x := found[name]
		if x == nil {
			x = &handler{}
			found[name] = x
		}
		x.file = file[strings.LastIndexByte(file, '/')+1:]
		switch {
		case strings.Contains(body, "NV_CTL_DEVICE_ONLY"):
			x.dev = "ctl"
		case strings.Contains(body, "NV_ACTUAL_DEVICE_ONLY"):
			x.dev = "gpu"
		}
		for _, t := range escapeParams.FindAllStringSubmatch(body, -1) {
			if _, _, ok := h.f.Resolve(t[1]); ok && !slices.Contains(x.params, t[1]) {
				x.params = append(x.params, t[1])
			}
		}
		if t := escapeArray.FindStringSubmatch(body); t != nil && len(x.params) == 0 {
			x.params = append(x.params, t[1]+"[]")
		}
	}
}

// escapeStructs resolves the structs. Where a struct comes with a wrapper that
// adds a descriptor, the wrapper is what crosses.
func (h *harvest) escapeStructs(e *facts.Escape, params []string) {
	if i := slices.IndexFunc(params, func(p string) bool { return strings.HasPrefix(p, "nv_ioctl_nvos") }); i >= 0 {
		params = params[i : i+1]
	}
	for _, p := range params {
		key, size, ok := h.f.Resolve(strings.TrimSuffix(p, "[]"))
		if !ok {
			h.fail("escapes: %s: no layout of %s", e.Name, p)
		}
		if strings.HasSuffix(p, "[]") {
			key += "[]"
		}
		e.Params = append(e.Params, key)
		e.Sizes = append(e.Sizes, size)
	}
}
