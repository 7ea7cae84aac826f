package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/traces/escape"
)

// output writes what a session shows, whole lines at a time.
type output struct {
	mu     sync.Mutex
	w      io.Writer
	format Format
	print  *nvattach.PrintOptions
	err    error
}

func (o *output) write(b []byte) {
	if len(b) == 0 {
		return
	}
	if _, err := o.w.Write(b); err != nil && o.err == nil {
		o.err = err
	}
}

// text shows what a program printed.
func (o *output) text(sm int, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.format == FormatJSON {
		o.object(map[string]any{"printk": strings.TrimSuffix(text, "\n"), "sm": sm})
		return
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	o.write([]byte(text))
}

// record shows a record of a ring.
func (o *output) record(m *nvattach.Map, r nvattach.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.format == FormatJSON {
		b := []byte(`{"record": `)
		b = quoted(b, m.Name)
		b = fmt.Appendf(b, `, "sm": %d, "value": `, r.SM)
		o.write(append(m.AppendRecordJSON(b, r.Data), "}\n"...))
		return
	}
	b := fmt.Appendf(nil, "%s[sm %d] ", escape.String(m.Name), r.SM)
	o.write(append(m.AppendRecord(b, r.Data), '\n'))
}

func quoted(b []byte, s string) []byte {
	q, _ := json.Marshal(s) // strings always marshal
	return append(b, q...)
}

func (o *output) object(v any) {
	b, _ := json.Marshal(v) // of strings and numbers only
	o.write(append(b, '\n'))
}

// moment begins a look at the maps while the program runs.
func (o *output) moment(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.format == FormatJSON {
		o.object(map[string]any{"time": now.UTC().Format(time.RFC3339Nano)})
		return
	}
	o.write(fmt.Appendf(nil, "-- %s\n", now.Format("15:04:05.000")))
}

// tables shows maps; several says that there are other contexts beside this one.
func (o *output) tables(c *Context, several bool, tables []*nvattach.Table, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if several && len(tables) > 0 {
		if o.format == FormatJSON {
			o.object(map[string]any{"process": c.PID, "device": c.Device})
		} else {
			o.write(fmt.Appendf(nil, "process %d, device %d:\n", c.PID, c.Device))
		}
	}
	for _, t := range tables {
		if o.format == FormatJSON {
			o.write(append(t.AppendJSON(nil), '\n'))
			continue
		}
		var b bytes.Buffer
		if perr := t.Print(&b, o.print); perr != nil && o.err == nil {
			o.err = perr
		}
		o.write(b.Bytes())
	}
	if err != nil {
		o.say(err.Error())
	}
}

// kernels shows which kernels were probed and why others were not.
func (o *output) kernels(s *Session, all []Kernel) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(all) == 0 {
		o.say("no kernel that a program wants was loaded")
	}
	if o.format != FormatJSON {
		for _, line := range s.kernelLines(all) {
			o.write([]byte(escape.Line("%s", line)))
		}
		return
	}
	for i := range all {
		k := &all[i]
		line := map[string]any{"kernel": k.Name, "demangled": fatbin.Demangle(k.Name), "images": k.Images, "sites": k.Sites, "unprobed": k.Reason}
		if s.seesLaunches() {
			line["launched"] = k.Ran
		}
		if k.Unprobed > 0 {
			line["launches_unprobed"], line["unprobed"] = k.Unprobed, k.UnprobedWhy
		}
		if checked := s.checked(k); checked != nil {
			line["verify"] = checked.json()
		}
		o.object(line)
	}
}

// fault shows that something is missing.
func (o *output) fault(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.say(err.Error())
}

func (o *output) say(text string) {
	if o.format == FormatJSON {
		o.object(map[string]any{"notice": text})
		return
	}
	for line := range strings.SplitSeq(text, "\n") {
		o.write([]byte(escape.Line("nvtrace: %s", line)))
	}
}
