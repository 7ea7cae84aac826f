package objects

import (
	"path/filepath"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// TestCorpusObjects: in recordings of whole programs nothing is guessed,
// nothing is an orphan, and every handle that a call uses is a living object's.
func TestCorpusObjects(t *testing.T) {
	files, err := filepath.Glob("../../../../traces/corpus/*.nvt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in traces/corpus: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r, d, err := (&cli.ReadFlags{}).Open(new(cli.Env), file)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			l := NewObjectLog(d)
			used := 0
			for ev, err := range r.All() {
				if err != nil {
					t.Fatal(err)
				}
				if ev.Flags&traces.FlagAttached != 0 {
					t.Skip("recorded by attaching: what was made before is not known")
				}
				c := d.Decode(ev)
				for _, h := range handlesOf(&c) {
					used++
					// To free what is not there succeeds: libcuda frees handles that it has
					// set aside for an object and then not made.
					if l.Tree.Object(h.ref) == nil && (c.Escape.Name != "NV_ESC_RM_FREE" || h.what != "object") {
						t.Errorf("%.6f %s: %s %#x:%#x is no living object", float64(ev.Time)/1e9, c.AppendName(nil), h.what, h.ref.Client, h.ref.Handle)
					}
				}
				l.Observe(&observe.Event{Event: ev, Call: &c, Decoder: d})
			}
			made := 0
			for o := range l.Tree.Objects() {
				made++
				if o.Guessed || o.Client == nil || o.Parent == nil && !o.IsClient() {
					t.Errorf("%s: guessed %t, client %v, parent %v", o.Path(), o.Guessed, o.Client, o.Parent)
				}
				if o.Class == nil && o.Dup == nil {
					t.Errorf("%s: unknown class %#x", o.Path(), o.ClassID)
				}
			}
			for _, m := range l.maps {
				if !m.Managed && m.Of == nil {
					t.Errorf("the mapping of %s at %#x is not explained", m.Node, m.Addr)
				}
			}
			if n := l.Tree.Live(); n != 0 {
				t.Errorf("%d objects outlive the programs", n)
			}
			if used < 20 || made < 3 {
				t.Errorf("only %d handles and %d objects", used, made)
			}
		})
	}
}

type usedHandle struct {
	what string
	ref  rm.Ref
}

// handlesOf lists the objects that a successful RM call must have found.
func handlesOf(c *ioctl.Call) []usedHandle {
	if c.Escape == nil || c.Failed() || !c.HasStatus || c.Client == 0 {
		return nil
	}
	var out []usedHandle
	add := func(what string, handle uint32) {
		if handle != 0 {
			out = append(out, usedHandle{what, rm.Ref{Client: c.Client, Handle: handle}})
		}
	}
	if c.New != c.Client {
		add("client", c.Client)
		add("parent", c.Parent)
		if c.Object != c.New {
			add("object", c.Object)
		}
	}
	return out
}
