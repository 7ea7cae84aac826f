// Package harvest takes the facts of one driver version out of a source tree of
// NVIDIA's open kernel modules: declarations by way of packages cpp and cdecl, and
// what only code says (which struct a request takes, which commands are exported,
// what may be created under what) by the regular shapes of that code, each with a
// count that must come out.
package harvest

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"nvtrace/internal/gen/cdecl"
	"nvtrace/rm/internal/gen/facts"
)

// harvest is the work on one version.
type harvest struct {
	fsys  fs.FS
	f     *facts.Facts
	units map[string]*unit
	names map[*cdecl.Type]string // the key of each record
	errs  []error
}

// Counts tells how many rows the driver's own tables have, against which the
// harvest was checked.
type Counts struct {
	ExportRows int // rows with a methodId in the generated export tables
	Exported   int // distinct commands in them
	ClassRows  int // RS_ENTRY rows
	Headers    int
	Records    int
}

// String prints the counts on one line.
func (c Counts) String() string {
	return fmt.Sprintf("%d headers, %d records, %d export rows (%d commands), %d class rows", c.Headers, c.Records, c.ExportRows, c.Exported, c.ClassRows)
}

// Version reads the version of a source tree (version.mk).
func Version(fsys fs.FS) (string, error) {
	b, err := fs.ReadFile(fsys, "version.mk")
	if err != nil {
		return "", fmt.Errorf("version of the driver: %w", err)
	}
	m := regexp.MustCompile(`(?m)^NVIDIA_VERSION\s*=\s*(\S+)`).FindSubmatch(b)
	if m == nil {
		return "", errors.New("version of the driver: no NVIDIA_VERSION in version.mk")
	}
	return string(m[1]), nil
}

// complete checks that nothing is missing altogether, as when a header that a
// version must have was not there to be read.
func (h *harvest) complete() {
	for name, n := range map[string]int{
		"escapes": len(h.f.Escapes), "uvm": len(h.f.UVM), "kms": len(h.f.KMS), "nvswitch": len(h.f.NVSwitch), "nvlink": len(h.f.NVLink),
		"drm": len(h.f.DRM), "controls": len(h.f.Controls), "classes": len(h.f.Classes), "status codes": len(h.f.Status),
	} {
		if n == 0 {
			h.fail("%s: there are none", name)
		}
	}
	for _, e := range h.f.Escapes {
		if e.Where != "" && len(e.Params) == 0 {
			h.fail("escapes: %s is handled in %s, and no layout of its argument is known", e.Name, e.Where)
		}
	}
}

func (h *harvest) fail(format string, a ...any) { h.errs = append(h.errs, fmt.Errorf(format, a...)) }

// read returns a file that must be there.
func (h *harvest) read(name string) string {
	b, err := fs.ReadFile(h.fsys, name)
	if err != nil {
		h.fail("%w", err)
	}
	return string(b)
}

func number(s string) uint64 {
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		panic("BUG: a pattern let through the number " + s)
	}
	return v
}

// value evaluates an object-like macro of a unit.
func (h *harvest) value(u, name string) (uint64, bool) {
	v, ok := h.units[u].value(name)
	return v, ok
}

// macros keeps the numbers and bit ranges that name values of members. Methods
// of engine classes are no such names: headers with more than 100 of them are
// left out.
func (h *harvest) macros(name string) {
	u := h.units[name]
	methods := map[string]int{}
	for _, n := range u.pre.Order {
		if methodName.MatchString(n) {
			methods[u.pre.All[n].File]++
		}
	}
	for _, n := range u.pre.Order {
		m := u.pre.All[n]
		if m.Func || len(m.Body) == 0 || !strings.HasPrefix(n, "N") && !strings.HasPrefix(n, "UVM") && !strings.HasPrefix(n, "FINN") {
			continue
		}
		method := classHeader.MatchString(m.File) && methodName.MatchString(n) && methods[m.File] > 100 && !strings.Contains(m.File, "notification")
		if hi, lo, ok := u.bits(n); ok {
			if !method {
				h.f.Ranges[n] = [2]int64{hi, lo}
			}
			continue
		}
		if v, ok := u.value(n); ok && !method {
			h.f.Consts[n] = v
		}
	}
}

var (
	classHeader = regexp.MustCompile(`/class/cl([0-9a-f]{4})(.*)\.h$`)
	methodName  = regexp.MustCompile(`^NV[0-9A-F]{4}_[A-Z0-9_]+$`)
)

// status reads the status codes; their texts are not facts and stay there.
func (h *harvest) status() {
	src := h.read("src/common/sdk/nvidia/inc/nvstatuscodes.h")
	for _, m := range statusCode.FindAllStringSubmatch(src, -1) {
		h.f.Status[m[1]] = number(m[2])
	}
	if n := strings.Count(src, "\nNV_STATUS_CODE("); n != len(h.f.Status) {
		h.fail("nvstatuscodes.h: %d codes read of %d", len(h.f.Status), n)
	}
}

var statusCode = regexp.MustCompile(`NV_STATUS_CODE\(\s*(\w+)\s*,\s*(0x[0-9a-fA-F]+)`)
