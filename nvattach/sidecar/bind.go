// Package sidecar makes what runs beside a module that is loaded already: its kernels with programs, in a
// module of their own, which works on the first one's variables ([Bind]).
package sidecar

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/ptx"
)

// Bind returns an image whose kernel, which was rewritten in it, uses the variables of another
// module, at these addresses in global memory, instead of its own.
func Bind(image []byte, kernel string, arch fatbin.Arch, at map[string]uint64) ([]byte, error) {
	switch f := fatbin.Sniff(image); f {
	case fatbin.FormatCubin:
		return fatbin.ResolveSymbols(image, at)
	case fatbin.FormatPTX:
		text, err := bindText(strings.TrimRight(string(image), "\x00"), kernel, at)
		return append([]byte(text), 0), err
	case fatbin.FormatContainer:
	default:
		return nil, fmt.Errorf("image of %d bytes: %v: %w", len(image), f, nvattach.ErrNotWoven)
	}
	c, _, err := fatbin.ParseContainer(image)
	if err != nil {
		return nil, err
	}
	i, bind := nvattach.Prefers(c.Entries, fatbin.KindELF, arch), func(b []byte) ([]byte, error) { return fatbin.ResolveSymbols(b, at) }
	if i < 0 {
		i, bind = nvattach.Prefers(c.Entries, fatbin.KindPTX, arch), func(b []byte) ([]byte, error) {
			text, err := bindText(string(b), kernel, at)
			return []byte(text), err
		}
	}
	if i < 0 {
		return nil, fmt.Errorf("no entry for %v: %w", arch, nvattach.ErrNotWoven)
	}
	old := &c.Entries[i]
	data, err := old.Data(nil)
	if err != nil {
		return nil, err
	}
	if data, err = bind(data); err != nil {
		return nil, err
	}
	c.Entries[i], err = fatbin.NewEntry(old.Kind(), old.Arch(), data, &fatbin.EntryOptions{Ident: old.Ident(), Options: old.Options()})
	return c.Append(nil), err
}

// bindText is Bind of PTX: the kernel, and all functions, have the addresses in registers.
func bindText(src, kernel string, at map[string]uint64) (string, error) {
	f, err := ptx.Parse("image", src, nil)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	last := 0
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		if !fn.HasBody() || fn.Kind == ptx.FuncEntry && f.Text(fn.Name) != kernel {
			continue
		}
		begin, end := int(f.Stmts[fn.Open].End), int(f.Stmts[fn.Close].Pos)
		body, used, err := bindBody(f.Src[begin:end], at)
		if err != nil {
			return "", fmt.Errorf("%s: %w", fatbin.Demangle(f.Text(fn.Name)), err)
		}
		out.WriteString(f.Src[last:begin])
		for _, name := range used {
			r := boundRegister(name)
			fmt.Fprintf(&out, "\n\t.reg .b64 %s;\n\tmov.b64 %s, %#x;", r, r, at[name])
		}
		out.WriteString(body)
		last = end
	}
	out.WriteString(f.Src[last:])
	return out.String(), nil
}

// boundRegister is the register with a variable's address.
func boundRegister(name string) string { return "%nvtrace_of_" + name }

// errInSum: a register can't stand there.
var errInSum = errors.New("adds to the address of a variable outside of an access")

// bindBody puts registers where variables are named, and names these.
func bindBody(body string, at map[string]uint64) (text string, used []string, err error) {
	var out strings.Builder
	last, within := 0, 0
	for t := range ptx.Lex(body) {
		word := body[t.Pos:t.End]
		switch word {
		case "[":
			within++
		case "]":
			within--
		}
		if _, ok := at[word]; !ok || t.Kind != ptx.TokIdent {
			continue
		}
		if rest := strings.TrimLeft(body[t.End:], " \t"); within == 0 && strings.HasPrefix(rest, "+") {
			return "", nil, errInSum
		}
		out.WriteString(body[last:t.Pos])
		out.WriteString(boundRegister(word))
		last = int(t.End)
		if !slices.Contains(used, word) {
			used = append(used, word)
		}
	}
	out.WriteString(body[last:])
	return out.String(), used, nil
}
