// Package pack turns the facts about functions into the file that package api
// carries.
package pack

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"nvtrace/nvattach/api"
	"nvtrace/nvattach/api/internal/gen/facts"
)

// Encode packs the facts of all libraries. Equal facts give equal bytes.
func Encode(sets []*facts.Set) ([]byte, error) {
	e := &encoder{types: map[string]int{}, strings: map[string]int{}}
	slices.SortFunc(sets, func(a, b *facts.Set) int { return strings.Compare(a.Library, b.Library) })
	var body []byte
	body = binary.AppendUvarint(body, uint64(len(sets)))
	for _, s := range sets {
		lib := library(s.Library)
		if lib == api.Unknown {
			return nil, fmt.Errorf("%s: not a library of package api", s.Library)
		}
		b, err := e.library(lib, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Library, err)
		}
		body = append(body, b...)
	}
	var raw []byte
	raw = binary.AppendUvarint(raw, uint64(len(e.text)))
	for _, s := range e.text {
		raw = binary.AppendUvarint(raw, uint64(len(s)))
		raw = append(raw, s...)
	}
	raw = binary.AppendUvarint(raw, uint64(len(e.packed)))
	for _, t := range e.packed {
		raw = append(raw, t...)
	}
	raw = append(raw, body...)
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Equal reports whether two packed files hold the same.
func Equal(a, b []byte) bool {
	x, errX := io.ReadAll(flate.NewReader(bytes.NewReader(a)))
	y, errY := io.ReadAll(flate.NewReader(bytes.NewReader(b)))
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func library(name string) api.Library {
	for _, l := range append(api.Libraries(), api.LibC) {
		if l.String() == name {
			return l
		}
	}
	return api.Unknown
}

// encoder gives strings and types their numbers; equal types are one.
type encoder struct {
	strings map[string]int
	text    []string
	types   map[string]int
	packed  []string
}

func (e *encoder) string(s string) uint64 {
	n, ok := e.strings[s]
	if !ok {
		n = len(e.text)
		e.strings[s] = n
		e.text = append(e.text, s)
	}
	return uint64(n)
}

// add returns the number of a type in its packed form.
func (e *encoder) add(b []byte) int {
	n, ok := e.types[string(b)]
	if !ok {
		n = len(e.packed)
		e.types[string(b)] = n
		e.packed = append(e.packed, string(b))
	}
	return n
}

// library packs a library's functions, each with its variants.
func (e *encoder) library(lib api.Library, s *facts.Set) ([]byte, error) {
	var b []byte
	b = binary.AppendUvarint(b, uint64(lib))
	var releases []*resolver
	for _, r := range s.Releases {
		releases = append(releases, &resolver{e: e, set: s, release: r.Name, major: r.Major, made: map[string]resolved{}})
	}
	names := slices.Sorted(maps.Keys(s.Funcs))
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		type variant struct {
			major int
			body  []byte
		}
		var variants []variant
		for _, r := range releases {
			fact, ok := s.Funcs[name][r.release]
			if !ok {
				continue
			}
			body, err := r.function(name, fact)
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", name, r.release, err)
			}
			if n := len(variants); n > 0 && variants[n-1].major == r.major {
				variants[n-1].body = body // the newest release of a major version speaks for it
				continue
			}
			variants = append(variants, variant{r.major, body})
		}
		variants = slices.CompactFunc(variants, func(a, b variant) bool { return bytes.Equal(a.body, b.body) })
		b = binary.AppendUvarint(b, e.string(name))
		b = binary.AppendUvarint(b, uint64(len(variants)))
		for _, v := range variants {
			b = binary.AppendUvarint(b, uint64(v.major))
			b = append(b, v.body...)
		}
	}
	return b, nil
}

// resolver turns a release's facts into packed types.
type resolver struct {
	e       *encoder
	set     *facts.Set
	release string
	major   int
	made    map[string]resolved
}

// resolved is a packed type, and what others need of it.
type resolved struct {
	n           int
	kind        api.Kind
	size, align int
	opaque      bool
}

func (r *resolver) function(name, fact string) ([]byte, error) {
	var result json.RawMessage
	var params [][]json.RawMessage
	if err := tuple(fact, &result, &params); err != nil {
		return nil, err
	}
	t, err := r.typeOf(result, false)
	if err != nil {
		return nil, err
	}
	var b []byte
	b = binary.AppendUvarint(b, uint64(t.n))
	b = binary.AppendUvarint(b, uint64(len(params)))
	for i, p := range params {
		var pname string
		var spelled json.RawMessage
		if err := elements(p, &pname, &spelled); err != nil {
			return nil, err
		}
		if own := flagsOf(r.set.Library, name, pname); own != "" {
			t, err = r.flags(own)
		} else {
			t, err = r.typeOf(spelled, false)
		}
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", pname, err)
		}
		if pname == "" {
			pname = fmt.Sprintf("arg%d", i)
		}
		b = binary.AppendUvarint(b, r.e.string(pname))
		b = binary.AppendUvarint(b, uint64(t.n))
	}
	return b, nil
}

// flags makes the type of an integer that is a sum of an enumeration's values.
func (r *resolver) flags(name string) (resolved, error) {
	key := "flags " + name
	if t, ok := r.made[key]; ok {
		return t, nil
	}
	enum := name
	for range 4 { // typedefs
		var word, target string
		if fact := r.set.Types[enum][r.release]; fact == "" || tuple(fact, &word, &target) != nil || word != "alias" {
			break
		}
		enum = target
	}
	values, err := r.values(enum)
	if err != nil {
		return resolved{}, err
	}
	if len(values) == 0 {
		return resolved{}, fmt.Errorf("no values of %s", name)
	}
	t := r.enum(api.KindFlags, name, 4, values)
	r.made[key] = t
	return t, nil
}

// typeOf resolves a spelled type. Inside a structure pointers have no target:
// nobody follows them, and structures may point to themselves.
func (r *resolver) typeOf(spelled json.RawMessage, inside bool) (resolved, error) {
	var text string
	if json.Unmarshal(spelled, &text) == nil {
		return r.named(text, inside)
	}
	var word string
	if err := tuple(string(spelled), &word); err != nil {
		return resolved{}, err
	}
	if word == "of" {
		var inner json.RawMessage
		var suffix string
		if err := tuple(string(spelled), &word, &inner, &suffix); err != nil {
			return resolved{}, err
		}
		t, err := r.typeOf(inner, inside)
		if err != nil {
			return resolved{}, err
		}
		return r.suffix(t, suffix, inside)
	}
	return r.definition("", string(spelled))
}

// named resolves "char const*[4]".
func (r *resolver) named(text string, inside bool) (resolved, error) {
	end := strings.IndexAny(text, "*[")
	if end < 0 {
		return r.base(text)
	}
	name := strings.TrimSuffix(text[:end], " const")
	pointer := strings.Contains(text, "*")
	if inside && pointer {
		return r.suffix(resolved{n: -1}, text[len(name):], inside)
	}
	t, err := r.base(name)
	if err != nil {
		return resolved{}, err
	}
	return r.suffix(t, text[len(name):], inside)
}

// suffix applies const, * and [n].
func (r *resolver) suffix(t resolved, s string, inside bool) (resolved, error) {
	for s != "" {
		isConst := strings.HasPrefix(s, " const")
		s = strings.TrimPrefix(s, " const")
		switch {
		case strings.HasPrefix(s, "*"):
			s = s[1:]
			ref := t.n + 1
			if t.opaque || inside {
				ref = 0
			}
			flags := uint64(0)
			if isConst {
				flags = typeConst
			}
			kind := api.KindPointer
			b := r.head(kind, "", 8, 8, flags)
			b = binary.AppendUvarint(b, uint64(ref))
			t = resolved{n: r.e.add(b), kind: kind, size: 8, align: 8}
		case strings.HasPrefix(s, "["):
			count, end := 0, strings.IndexByte(s, ']')
			if _, err := fmt.Sscanf(s, "[%d]", &count); err != nil || end < 0 || t.n < 0 {
				return t, fmt.Errorf("array %q", s)
			}
			s = s[end+1:]
			b := r.head(api.KindArray, "", count*t.size, t.align, 0)
			b = binary.AppendUvarint(b, uint64(t.n+1))
			b = binary.AppendUvarint(b, uint64(count))
			t = resolved{n: r.e.add(b), kind: api.KindArray, size: count * t.size, align: t.align}
		default:
			return t, fmt.Errorf("type suffix %q", s)
		}
	}
	return t, nil
}

// Flags of a packed type, as package api's Decode describes them.
const (
	typeConst  = 1
	typeStatus = 2
)

func (r *resolver) head(kind api.Kind, name string, size, align int, flags uint64) []byte {
	b := binary.AppendUvarint(nil, uint64(kind))
	b = binary.AppendUvarint(b, r.e.string(name))
	b = binary.AppendUvarint(b, uint64(size))
	b = binary.AppendUvarint(b, uint64(align))
	return binary.AppendUvarint(b, flags)
}

func (r *resolver) simple(kind api.Kind, name string, size int) resolved {
	return resolved{n: r.e.add(r.head(kind, name, size, max(size, 1), 0)), kind: kind, size: size, align: max(size, 1)}
}

// basics are the types that need no fact.
var basics = map[string]struct {
	kind api.Kind
	size int
}{
	"void": {api.KindVoid, 0}, "bool": {api.KindBool, 1}, "char": {api.KindChar, 1}, "fn": {api.KindFunc, 0},
	"signed char": {api.KindInt, 1}, "short": {api.KindInt, 2}, "int": {api.KindInt, 4}, "long": {api.KindInt, 8}, "long long": {api.KindInt, 8},
	"unsigned char": {api.KindUint, 1}, "unsigned short": {api.KindUint, 2}, "unsigned int": {api.KindUint, 4},
	"unsigned long": {api.KindUint, 8}, "unsigned long long": {api.KindUint, 8},
	"float": {api.KindFloat, 4}, "double": {api.KindFloat, 8}, "long double": {api.KindFloat, 16},
}

// base resolves a name.
func (r *resolver) base(name string) (resolved, error) {
	if b, ok := basics[name]; ok {
		return r.simple(b.kind, name, b.size), nil
	}
	if t, ok := r.made[name]; ok {
		return t, nil
	}
	fact, ok := r.set.Types[name][r.release]
	if !ok {
		return resolved{}, fmt.Errorf("no fact about type %q", name)
	}
	t, err := r.definition(name, fact)
	if err != nil {
		return t, fmt.Errorf("type %s: %w", name, err)
	}
	r.made[name] = t
	return t, nil
}

// definition resolves a fact about a type.
func (r *resolver) definition(name, fact string) (resolved, error) {
	var word string
	if err := tuple(fact, &word); err != nil {
		return resolved{}, err
	}
	kinds := map[string]api.Kind{"int": api.KindInt, "uint": api.KindUint, "float": api.KindFloat, "bool": api.KindBool, "char": api.KindChar}
	switch word {
	case "opaque":
		b := append(r.head(api.KindStruct, name, 0, 1, 0), 0) // no members
		return resolved{n: r.e.add(b), kind: api.KindStruct, align: 1, opaque: true}, nil
	case "handle":
		return r.simple(api.KindHandle, name, 8), nil
	case "int", "uint", "float", "bool", "char":
		var size int
		if err := tuple(fact, &word, &size); err != nil {
			return resolved{}, err
		}
		return r.simple(kinds[word], name, size), nil
	case "alias":
		return r.alias(name, fact)
	case "enum":
		var size int
		if err := tuple(fact, &word, &size); err != nil {
			return resolved{}, err
		}
		values, err := r.values(name)
		if err != nil {
			return resolved{}, err
		}
		return r.enum(api.KindEnum, name, size, values), nil
	case "struct", "union":
		return r.record(name, fact, word == "union")
	}
	return resolved{}, fmt.Errorf("fact %q", word)
}

// alias resolves a typedef. What it names takes the typedef's name, but for
// pointers and arrays.
func (r *resolver) alias(name, fact string) (resolved, error) {
	var word string
	var spelled json.RawMessage
	if err := tuple(fact, &word, &spelled); err != nil {
		return resolved{}, err
	}
	var target string
	if json.Unmarshal(spelled, &target) == nil && !strings.ContainsAny(target, "*[") {
		inner, ok := r.set.Types[target][r.release]
		switch {
		case strings.HasPrefix(inner, `["enum"`): // its values are found by the tag
			var size int
			if err := tuple(inner, &word, &size); err != nil {
				return resolved{}, err
			}
			values, err := r.values(target)
			if err != nil {
				return resolved{}, err
			}
			return r.enum(api.KindEnum, name, size, values), nil
		case ok:
			return r.definition(name, inner)
		}
	}
	return r.typeOf(spelled, false)
}

func (r *resolver) record(name, fact string, union bool) (resolved, error) {
	var word string
	var size, align int
	var fields [][]json.RawMessage
	if err := tuple(fact, &word, &size, &align, &fields); err != nil {
		return resolved{}, err
	}
	kind := api.KindStruct
	if union {
		kind = api.KindUnion
	}
	var body []byte
	for _, f := range fields {
		var fname string
		var offset, bit, bits int
		var spelled json.RawMessage
		if err := elements(f, &fname, &offset, &spelled, &bit, &bits); err != nil {
			return resolved{}, err
		}
		t, err := r.typeOf(spelled, true)
		if err != nil {
			return resolved{}, fmt.Errorf("member %s: %w", fname, err)
		}
		body = binary.AppendUvarint(body, r.e.string(fname))
		body = binary.AppendUvarint(body, uint64(offset))
		body = binary.AppendUvarint(body, uint64(t.n))
		body = binary.AppendUvarint(body, uint64(bit))
		body = binary.AppendUvarint(body, uint64(bits))
	}
	b := r.head(kind, name, size, align, 0)
	b = binary.AppendUvarint(b, uint64(len(fields)))
	return resolved{n: r.e.add(append(b, body...)), kind: kind, size: size, align: align}, nil
}

// values gathers an enumeration's values of all releases, the newer first:
// values are only added, and an old program's may be gone from a new header.
func (r *resolver) values(name string) ([]api.Value, error) {
	var all []api.Value
	seen := map[string]bool{}
	for _, rel := range slices.Backward(r.set.Releases) {
		fact, ok := r.set.Types[name][rel.Name]
		if !ok {
			continue
		}
		var word string
		var size int
		var list [][]json.RawMessage
		if err := tuple(fact, &word, &size, &list); err != nil {
			return nil, err
		}
		for _, v := range list {
			var one api.Value
			if err := elements(v, &one.Name, &one.Number); err != nil {
				return nil, err
			}
			if !seen[one.Name] {
				seen[one.Name] = true
				all = append(all, one)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b api.Value) int { return cmp.Compare(a.Number, b.Number) })
	return all, nil
}

func (r *resolver) enum(kind api.Kind, name string, size int, values []api.Value) resolved {
	flags := uint64(0)
	for _, v := range values {
		if v.Number == 0 && isSuccess[v.Name] {
			flags = typeStatus
		}
	}
	b := r.head(kind, name, size, size, flags)
	b = binary.AppendUvarint(b, uint64(len(values)))
	for _, v := range values {
		b = binary.AppendUvarint(b, r.e.string(v.Name))
		b = binary.AppendVarint(b, v.Number)
	}
	return resolved{n: r.e.add(b), kind: kind, size: size, align: size}
}

// tuple reads the elements of a JSON array, those that are there.
func tuple(fact string, into ...any) error {
	var raw []json.RawMessage
	if err := json.Unmarshal([]byte(fact), &raw); err != nil {
		return fmt.Errorf("fact %.60s: %w", fact, err)
	}
	return elements(raw, into...)
}

func elements(raw []json.RawMessage, into ...any) error {
	for i, x := range into {
		if i >= len(raw) {
			break
		}
		if err := json.Unmarshal(raw[i], x); err != nil {
			return fmt.Errorf("fact %.60s: %w", raw[i], err)
		}
	}
	return nil
}
