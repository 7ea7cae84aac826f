package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

var aloneCubins = []string{"kernels.11.8.sm_80.cubin", "kernels.12.4.sm_90a.cubin", "kernels.13.0.sm_90a.cubin"}

// A kernel alone is what it was among others, and nothing of these is left.
func TestAlone(t *testing.T) {
	for _, name := range aloneCubins {
		e, err := NewCubinEditor(read(t, filepath.Join("testdata", name)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Apart(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(e.cubin.Kernels) < 2 {
			t.Fatalf("%s has %d kernels", name, len(e.cubin.Kernels))
		}
		for i := range e.cubin.Kernels {
			k := &e.cubin.Kernels[i]
			cubin, err := e.Alone(k.Name)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			got, err := NewCubinEditor(cubin, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.cubin.Kernels) != 1 || !reflect.DeepEqual(got.cubin.Kernels[0], *k) {
				t.Errorf("%s: %s is\n%+v, not\n%+v", name, k.Name, got.cubin.Kernels, *k)
				continue
			}
			code, err := got.Code(k.Name)
			if err != nil {
				t.Fatal(err)
			}
			want, err := e.Code(k.Name)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(code.Code, want.Code) || !slices.Equal(code.Listed, want.Listed) || !slices.Equal(code.Exits, want.Exits) || !slices.Equal(got.Externs(k.Name), e.Externs(k.Name)) {
				t.Errorf("%s: %s has other code, or other places in it", name, k.Name)
			}
			if !reflect.DeepEqual(got.cubin.Variables, variablesWithout(e, k)) {
				t.Errorf("%s: %s: variables %+v", name, k.Name, got.cubin.Variables)
			}
			for j := range e.cubin.Kernels {
				// A name may be part of another, which stays.
				if o := &e.cubin.Kernels[j]; o != k && !strings.Contains(k.Name, o.Name) && bytes.Contains(cubin, []byte(o.Name)) {
					t.Errorf("%s: %s is still there beside %s", name, o.Name, k.Name)
				}
			}
			for j := range got.file.sections {
				s, o := &got.file.sections[j], &e.file.sections[j]
				switch {
				case s.Type == 0:
				case s.Name != o.Name || s.Type != o.Type || s.Flags != o.Flags || s.Link != o.Link || s.Info != o.Info || s.Offset%128 != o.Offset%128:
					t.Errorf("%s: %s: section %+v was %+v", name, k.Name, *s, *o)
				case strings.HasPrefix(s.Name, ".nv.constant") && !bytes.Equal(got.file.bytes(uint32(j)), e.file.bytes(uint32(j))):
					t.Errorf("%s: %s: other constants in %s", name, k.Name, s.Name)
				}
			}
		}
	}
}

// variablesWithout are a file's variables but for those of other kernels.
func variablesWithout(e *CubinEditor, k *Kernel) (list []Variable) {
	for _, v := range e.cubin.Variables {
		of, shared := hasPrefixName(v.Section, ".nv.shared.")
		if !shared || of == k.Name || strings.HasPrefix(of, "reserved") {
			list = append(list, v)
		}
	}
	return list
}

// What is written of a kernel alone, nvdisasm reads as it does among others.
func TestAloneDisassembled(t *testing.T) {
	tool := need.Tool(t, "nvdisasm", "NVTRACE_NVDISASM")
	instruction, label := regexp.MustCompile(`(?m)^\s+/\*[0-9a-f]{4,}\*/ .*;`), regexp.MustCompile(`\.L_x_\d+`)
	text := func(cubin []byte, kernel string) string {
		file := filepath.Join(t.TempDir(), "x.cubin")
		if err := os.WriteFile(file, cubin, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tool, "-c", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(out), "\n.text."+kernel+":\n")
		rest, _, _ = strings.Cut(rest, "\n.text.")
		return label.ReplaceAllString(strings.Join(instruction.FindAllString(rest, -1), "\n"), "label") // they are numbered throughout
	}
	for _, name := range aloneCubins {
		data := read(t, filepath.Join("testdata", name))
		e, err := NewCubinEditor(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range e.cubin.Kernels {
			k := e.cubin.Kernels[i].Name
			cubin, err := e.Alone(k)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := text(cubin, k), text(data, k); got != want || !strings.Contains(got, "EXIT") {
				t.Errorf("%s: %s:\n%s\nwant\n%s", name, k, got, want)
			}
		}
	}
}

// A kernel that names what belongs to another stays among the others.
func TestAloneRefused(t *testing.T) {
	refused := 0
	mercury := editor(t, "kernels.13.0.sm_100f.cubin")
	if _, err := mercury.Alone(mercury.cubin.Kernels[0].Name); !errors.Is(err, ErrNotEditable) {
		t.Errorf("code in another form: %v", err)
	}
	for _, cubin := range aloneCubins {
		data := slices.Clone(read(t, filepath.Join("testdata", cubin)))
		e, err := NewCubinEditor(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Alone("none"); err == nil {
			t.Error("there is no such kernel")
		}
		for i := range e.cubin.Kernels {
			k := &e.cubin.Kernels[i]
			for _, j := range e.relocs[k.Section] {
				s := &e.file.sections[j]
				if s.Size == 0 {
					continue
				}
				// The symbol of its first relocation.
				binary.LittleEndian.PutUint32(data[s.Offset+12:], e.cubin.Kernels[(i+1)%len(e.cubin.Kernels)].Symbol)
				if _, err := e.Alone(k.Name); !errors.Is(err, ErrNotEditable) {
					t.Errorf("%s: %s calls another kernel: %v", cubin, k.Name, err)
				}
				if err := e.Apart(); !errors.Is(err, ErrNotEditable) {
					t.Errorf("%s: %s calls another kernel, and they are apart: %v", cubin, k.Name, err)
				}
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("no kernel has relocations")
	}
}
