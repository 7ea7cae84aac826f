package ioctl

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// json decodes and exports all events of the world.
func (w *world) json() []byte {
	d := NewDecoder(w.header())
	var out []byte
	for _, e := range w.events {
		c := d.Decode(e)
		out = d.AppendJSON(out, e, &c)
	}
	return out
}

func TestJSON(t *testing.T) {
	var files []txtar.File
	for _, s := range []struct {
		name string
		w    *world
	}{{"startup", startup(t)}, {"memory", memory(t)}, {"uvm", uvm(t)}, {"odd", odd(t)}} {
		data := s.w.json()
		files = append(files, txtar.File{Name: s.name, Data: data})
		lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
		if len(lines) != len(s.w.events) {
			t.Errorf("%s: %d lines for %d events", s.name, len(lines), len(s.w.events))
		}
		for i, line := range lines {
			var v struct {
				T    int64  `json:"t"`
				Call string `json:"call"`
			}
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatalf("%s: %v\n%s", s.name, err, line)
			}
			if v.T != s.w.events[i].Time {
				t.Errorf("%s: line %d is of another event", s.name, i)
			}
		}
	}
	golden(t, "testdata/json.txtar", files)
}

func checkJSON(t *testing.T, line []byte) {
	t.Helper()
	if !json.Valid(line) {
		t.Fatalf("not JSON: %s", line)
	}
}
