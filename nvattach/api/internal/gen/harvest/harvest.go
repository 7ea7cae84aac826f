package harvest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvtrace/internal/gen/cdecl"
	"nvtrace/nvattach/api/internal/gen/facts"
)

// Result is what the headers of a release say about a library.
type Result struct {
	Library string
	Release facts.Release
	Types   map[string]any
	Funcs   map[string]any
}

// Extract reads the headers below the folders, those of a release. gcc must be
// there. Libraries whose header is missing are left out.
func Extract(release string, dirs ...string) ([]*Result, error) {
	includes, err := includeDirs(dirs)
	if err != nil {
		return nil, err
	}
	stubs, err := os.MkdirTemp("", "api-gen")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(stubs)
	if err := writeForeign(stubs); err != nil {
		return nil, err
	}
	var out []*Result
	for i := range sources {
		src := &sources[i]
		if find(includes, src.headers[0]) == "" {
			continue
		}
		r, err := src.extract(release, append(slices.Clone(includes), stubs))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", src.library, err)
		}
		if n := len(out); n > 0 && out[n-1].Library == r.Library {
			out[n-1].merge(r)
			continue
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no header of a known library below %s", strings.Join(dirs, ", "))
	}
	return out, nil
}

// merge adds what a second source of the library declares, which does not
// change what the first did.
func (r *Result) merge(o *Result) {
	for name, f := range o.Types {
		if r.Types[name] == nil {
			r.Types[name] = f
		}
	}
	for name, f := range o.Funcs {
		if r.Funcs[name] == nil {
			r.Funcs[name] = f
		}
	}
}

// includeDirs finds the folders called include below dirs, and dirs themselves.
func includeDirs(dirs []string) (list []string, err error) {
	for _, dir := range dirs {
		list = append(list, dir)
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "include" {
				list = append(list, path)
				return fs.SkipDir
			}
			return err
		}))
	}
	return list, err
}

func find(dirs []string, header string) string {
	for _, d := range dirs {
		if f := filepath.Join(d, header); fileExists(f) {
			return f
		}
	}
	return ""
}

func fileExists(f string) bool {
	_, err := os.Stat(f)
	return err == nil
}

// macroPrefix keeps an enumerator that is made of a macro from being expanded.
const macroPrefix = "nvtrace_"

// writeForeign writes the headers that stand in for other software's.
func writeForeign(dir string) error {
	for name, text := range foreign {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// includes is the first part of what the preprocessor is given.
func (src *source) includes(dirs []string) string {
	var b strings.Builder
	if src.interop { // its headers need not include what they use
		for _, h := range slices.Sorted(maps.Keys(foreign)) {
			fmt.Fprintf(&b, "#include <%s>\n", h)
		}
	}
	for _, h := range src.headers {
		if find(dirs, h) != "" {
			fmt.Fprintf(&b, "#include <%s>\n", h)
		}
	}
	return b.String()
}

// additions is the second part: what no header declares.
func (src *source) additions() string {
	var b strings.Builder
	b.WriteString(src.extra + "\n")
	if src.major != "" {
		fmt.Fprintf(&b, "enum %smajor { %smajor = %s };\n", macroPrefix, macroPrefix, src.major)
	}
	for _, g := range src.flags {
		fmt.Fprintf(&b, "enum %s {\n", g.name)
		for _, m := range g.macros {
			fmt.Fprintf(&b, "#ifdef %s\n%s%s = %s,\n#endif\n", m, macroPrefix, m, m)
		}
		b.WriteString("};\n")
	}
	return b.String()
}

func preprocess(text, define string, includes []string) (string, error) {
	args := []string{"-E", "-P", "-xc"}
	if define != "" {
		args = append(args, "-D"+define)
	}
	for _, d := range includes {
		args = append(args, "-isystem", d)
	}
	cmd := exec.Command("gcc", append(args, "-")...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("gcc -E: %w: %s", err, firstLines(stderr.String(), 5))
	}
	return string(out), nil
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	return strings.Join(lines[:min(len(lines), n)], "\n")
}

// extract reads a library's headers in all runs.
func (src *source) extract(release string, includes []string) (*Result, error) {
	var all *Result
	for _, define := range src.defines() {
		r, err := src.extractRun(release, define, includes)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = r
			continue
		}
		all.merge(r)
	}
	return all, nil
}

func (src *source) extractRun(release, define string, includes []string) (*Result, error) {
	text, err := preprocess(src.includes(includes)+src.additions(), define, includes)
	if err != nil {
		return nil, err
	}
	u := cdecl.Parse(cdecl.Tokens(text), &cdecl.Options{Wide: true})
	if len(u.Errors) > 0 {
		return nil, fmt.Errorf("%d declarations can't be read, the first: %w", len(u.Errors), u.Errors[0])
	}
	r := &Result{Library: src.library, Release: facts.Release{Name: release}, Funcs: map[string]any{}}
	if m := u.Tags[macroPrefix+"major"]; m != nil {
		r.Release.Major = int(m.Values[0].Number)
	} else if src.library != "driver" {
		major, _, _ := strings.Cut(release, ".")
		r.Release.Major, _ = strconv.Atoi(major)
	}
	w := &writer{types: map[string]any{}}
	for _, g := range src.flags {
		w.record(u.Tags[g.name])
	}
	for name, t := range u.Typedefs { // what parameters of an integer type sum up
		if t.Base().Class == cdecl.Enum && strings.HasSuffix(strings.ToLower(name), "flags") {
			w.typedef(t)
		}
	}
	for _, f := range u.Funcs {
		if src.wants(f.Name) {
			r.Funcs[f.Name] = w.function(f.Type)
		}
	}
	r.Types = w.types
	return r, nil
}

// defines are the macros to define, a run of the preprocessor for each.
func (src *source) defines() []string {
	if src.interop {
		return []string{"", perThread}
	}
	return []string{""}
}

func (src *source) wants(name string) bool {
	return slices.ContainsFunc(src.prefix, func(p string) bool { return strings.HasPrefix(name, p) }) &&
		(src.library != "driver" || !strings.HasPrefix(name, "cuda"))
}

// writer turns types into facts.
type writer struct {
	types map[string]any // by name; nil while it is being made
}

func (w *writer) function(t *cdecl.Type) any {
	params := make([]any, len(t.Params))
	for i, p := range t.Params {
		params[i] = []any{p.Name, w.spell(p.Type)}
	}
	return []any{w.spell(t.Elem), params}
}

// spell returns a type as the facts write it: a name with const, * and [n]
// behind, or the definition of one that has no name.
func (w *writer) spell(t *cdecl.Type) any {
	suffix := ""
	for {
		switch t.Class {
		case cdecl.Pointer:
			s := "*"
			if t.Const {
				s = " const*"
			}
			suffix, t = s+suffix, t.Elem
			continue
		case cdecl.Array:
			suffix, t = "["+strconv.FormatInt(max(t.Count, 0), 10)+"]"+suffix, t.Elem
			continue
		}
		break
	}
	name := w.name(t)
	if text, ok := name.(string); ok {
		return text + suffix
	}
	if suffix != "" {
		return []any{"of", name, suffix}
	}
	return name
}

// name returns the name of a type that is neither pointer nor array, after
// noting what it is.
func (w *writer) name(t *cdecl.Type) any {
	switch t.Class {
	case cdecl.Func:
		return "fn"
	case cdecl.Named:
		w.typedef(t)
		return t.Name
	case cdecl.Struct, cdecl.Union, cdecl.Enum:
		if t.Name == "" {
			return w.definition(t)
		}
		w.record(t)
	}
	return t.Name
}

func (w *writer) record(t *cdecl.Type) {
	if _, known := w.types[t.Name]; known || t.Name == "" {
		return
	}
	w.types[t.Name] = nil
	w.types[t.Name] = w.definition(t)
}

// definition returns what a structure, union or enumeration is. One whose
// members nobody is to look at is called opaque by its name, or is not defined.
func (w *writer) definition(t *cdecl.Type) any {
	switch {
	case !t.Done || strings.Contains(t.Name, "Opaque"):
		return []any{"opaque"}
	case t.Class == cdecl.Enum:
		values := make([]any, len(t.Values))
		for i, v := range t.Values {
			values[i] = []any{strings.TrimPrefix(v.Name, macroPrefix), v.Number}
		}
		return []any{"enum", t.Size(), values}
	}
	fields := make([]any, len(t.Fields))
	for i, f := range t.Fields {
		field := []any{f.Name, f.Offset, w.spell(f.Type)}
		if f.Bits != 0 {
			field = append(field, f.Bit, f.Bits)
		}
		fields[i] = field
	}
	kind := "struct"
	if t.Class == cdecl.Union {
		kind = "union"
	}
	return []any{kind, t.Size(), t.Align(), fields}
}

// typedef notes what a typedef names.
func (w *writer) typedef(t *cdecl.Type) {
	if _, known := w.types[t.Name]; known {
		return
	}
	e := t.Elem
	if e.Name == t.Name && (e.Class == cdecl.Struct || e.Class == cdecl.Union || e.Class == cdecl.Enum) {
		w.record(e)
		return
	}
	w.types[t.Name] = nil
	switch base := t.Base(); base.Class {
	case cdecl.Pointer:
		target := base.Elem.Base()
		switch {
		case target.Class == cdecl.Void, (target.Class == cdecl.Struct || target.Class == cdecl.Union) && (!target.Done || strings.Contains(target.Name, "Opaque")):
			w.types[t.Name] = []any{"handle"}
			return
		}
	case cdecl.Int, cdecl.Uint, cdecl.Float, cdecl.Bool, cdecl.Char:
		kinds := map[cdecl.Class]string{cdecl.Int: "int", cdecl.Uint: "uint", cdecl.Float: "float", cdecl.Bool: "bool", cdecl.Char: "char"}
		w.types[t.Name] = []any{kinds[base.Class], base.Size()}
		return
	}
	w.types[t.Name] = []any{"alias", w.spell(e)}
}
