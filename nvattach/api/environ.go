package api

import (
	"cmp"
	"slices"
	"strings"

	"nvtrace/traces"
)

// maxVariables is how many variables an Environment keeps apart.
const maxVariables = 1 << 12

// Variable is an environment variable that a program's libraries asked for.
type Variable struct {
	Name  string   `json:"name"`
	Reads uint64   `json:"reads"`
	Set   bool     `json:"set"`             // at the latest read, in any process
	Value string   `json:"value,omitempty"` // of the latest read, where it was recorded
	By    []string `json:"by"`              // who asked, by file name; or during calls of which library; sorted
	// Meaning is what NVIDIA's documentation says it is for, in short; "" for what it
	// does not mention. Known is who reads it.
	Meaning  string `json:"meaning,omitempty"`
	Known    string `json:"known,omitempty"`
	Internal bool   `json:"internal,omitempty"` // of libcuda's own: a name without documentation
}

// Environment gathers which environment variables CUDA's libraries ask for, from
// recorded calls of getenv and secure_getenv. It is for one goroutine.
type Environment struct {
	seen map[string]*Variable
	all  bool
}

// NewEnvironment returns an empty Environment. Where all is false only variables
// are kept that matter to CUDA: by their names, or since one of its libraries asks.
func NewEnvironment(all bool) *Environment {
	return &Environment{seen: make(map[string]*Variable), all: all}
}

// readsVariable reports whether a call asks for a variable.
func readsVariable(f *Frame) bool {
	return f.Module.Library == LibC && (f.Name == "getenv" || f.Name == "secure_getenv")
}

// Add takes in an event; t is the Tracker that has just taken it in, and f what
// it returned. The text of a call's event names the file that the call came from,
// where the recorder knew it.
func (e *Environment) Add(ev *traces.Event, t *Tracker, f *Frame) {
	for _, ended := range t.Ended() {
		if readsVariable(ended) {
			e.read(ended, nil)
		}
	}
	if f == nil || ev.Kind != traces.KindReturn || !readsVariable(f) {
		return
	}
	e.read(f, ev)
}

// read counts a call; ev is its return, nil if that was not seen.
func (e *Environment) read(f *Frame, ev *traces.Event) {
	name := string(f.text)
	if name == "" || f.Parent != nil && readsVariable(f.Parent) {
		return // glibc's secure_getenv calls getenv: one read
	}
	by := f.caller
	if by == "" && f.Parent != nil {
		by = f.Parent.LibraryName()
	}
	if by == "" {
		by = "?"
	}
	by = by[strings.LastIndexByte(by, '/')+1:]
	if !e.all && !matters(name, by) {
		return
	}
	v := e.seen[name]
	if v == nil {
		if len(e.seen) >= maxVariables {
			return
		}
		v = &Variable{Name: name}
		if k, ok := variables[name]; ok {
			v.Meaning, v.Known = k.meaning, k.by
		} else {
			v.Internal = strings.HasPrefix(name, "CUDA_") || strings.HasPrefix(name, "__CUDA") || strings.HasPrefix(name, "CUDBG_")
		}
		e.seen[name] = v
	}
	v.Reads++
	if !slices.Contains(v.By, by) && len(v.By) < maxElems {
		v.By = append(v.By, strings.Clone(by))
		slices.Sort(v.By)
	}
	if ev == nil {
		return
	}
	v.Set = ev.Ret != 0
	v.Value = ""
	b := segment(ev.Mem, uint64(ev.Ret), true)
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	v.Value = string(b)
}

// matters reports whether a variable is of CUDA's, or one of its libraries asks.
func matters(name, by string) bool {
	if _, ok := variables[name]; ok || Match(by).Library != Unknown && Match(by).Library != LibC {
		return true
	}
	for _, l := range Libraries() {
		if by == l.String() {
			return true
		}
	}
	for _, p := range []string{"CUDA", "__CUDA", "CUDBG", "CUBLAS", "CUDNN", "CUFFT", "CUSPARSE", "CUSOLVER", "NCCL", "NVRTC", "NVCC", "NV_", "NVIDIA_", "CUPTI"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return strings.HasPrefix(by, "libcuda") || strings.HasPrefix(by, "libnv")
}

// Variables returns what was gathered: what is set first, then by name.
func (e *Environment) Variables() []Variable {
	list := make([]Variable, 0, len(e.seen))
	for _, v := range e.seen {
		c := *v
		c.By = slices.Clone(v.By)
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b Variable) int {
		if a.Set != b.Set {
			return cmp.Compare(btoi(b.Set), btoi(a.Set))
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
