package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/script"
	"nvtrace/traces/escape"
)

// output writes what a session shows, whole lines at a time.
type output struct {
	mu     sync.Mutex
	w      io.Writer
	format Format
	print  *mapmem.PrintOptions
	script *script.Program
	said   io.Writer // for what is no contents of maps; nil: w
	begun  bool      // FormatJSON: the array is
	err    error
	// notices are those so far, the first of many.
	notices []string
}

func (o *output) write(b []byte) {
	if len(b) == 0 {
		return
	}
	if _, err := o.w.Write(b); err != nil && o.err == nil {
		o.err = err
	}
}

// text shows what a program printed, where: "sm" n or "cpu" n.
func (o *output) text(where string, n int, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.format == FormatJSON {
		o.object(map[string]any{"printk": strings.TrimSuffix(text, "\n"), where: n})
		return
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	o.write([]byte(text))
}

// record shows a record of a ring.
func (o *output) record(where string, m *mapmem.Map, r mapmem.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owned(m) {
		o.printed(o.script.Record(r.Data))
		return
	}
	if o.format == FormatJSON {
		b := []byte(`{"record": `)
		b = escape.AppendJSON(b, m.Name)
		b = fmt.Appendf(b, `, "%s": %d, "value": `, where, r.SM)
		o.element(append(m.AppendRecordJSON(b, r.Data), '}'))
		return
	}
	b := fmt.Appendf(nil, "%s[%s %d] ", escape.String(m.Name), where, r.SM)
	o.write(append(m.AppendRecord(b, r.Data), '\n'))
}

// owned reports whether a map is the script's, which shows it.
func (o *output) owned(m *mapmem.Map) bool { return o.script != nil && o.script.Owns(m) }

// printed shows what the script printed.
func (o *output) printed(text string) {
	if o.format == FormatJSON {
		o.object(map[string]any{"printf": text})
		return
	}
	o.write([]byte(text))
}

// scriptBegan shows what the script's BEGIN printed.
func (o *output) scriptBegan(list []script.Shown) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range list {
		o.printed(list[i].Text)
	}
}

// scripted shows the script's maps, which are those of all processes and GPUs together;
// at the end of the run, after its END.
func (o *output) scripted(tables []*mapmem.Table, end bool) {
	if o.script == nil {
		return
	}
	o.shown(o.script.Show(tables, end))
}

// shown shows what a script printed, and its maps.
func (o *output) shown(list []script.Shown) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, s := range list {
		switch {
		case s.Name == "":
			o.printed(s.Text)
		case o.format == FormatJSON:
			o.element([]byte(s.JSON))
		default:
			if i > 0 {
				o.write([]byte("\n"))
			}
			o.write([]byte(s.Text))
		}
	}
}

func (o *output) object(v any) {
	b, _ := json.Marshal(v) // of strings and numbers only
	o.element(b)
}

// element writes an element of the array that a FormatJSON document is, in a line of
// its own.
func (o *output) element(b []byte) {
	lead := byte(',')
	if !o.begun {
		o.begun, lead = true, '['
	}
	o.write(append(append([]byte{lead}, b...), '\n'))
}

// end completes the document.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.format != FormatJSON:
	case o.begun:
		o.write([]byte("]\n"))
	default:
		o.write([]byte("[]\n"))
	}
}

// moment begins a look at the maps while the program runs.
func (o *output) moment(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.script != nil && o.script.Every() > 0 {
		return // the program says what is shown
	}
	if o.format == FormatJSON {
		o.object(map[string]any{"time": now.UTC().Format(time.RFC3339Nano)})
		return
	}
	o.write(fmt.Appendf(nil, "-- %s\n", now.Format("15:04:05.000")))
}

// tables shows maps; several says that there are other contexts beside this one.
func (o *output) tables(c *Context, several bool, tables []*mapmem.Table, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tables = slices.DeleteFunc(slices.Clone(tables), func(t *mapmem.Table) bool { return o.owned(t.Map) })
	if several && len(tables) > 0 {
		switch {
		case c.host != nil && o.format == FormatJSON:
			o.object(map[string]any{"host": true})
		case c.host != nil:
			o.write([]byte("host:\n"))
		case o.format == FormatJSON:
			o.object(map[string]any{"process": c.PID, "device": c.Device})
		default:
			o.write(fmt.Appendf(nil, "process %d, device %d:\n", c.PID, c.Device))
		}
	}
	for _, t := range tables {
		if o.format == FormatJSON {
			o.element(t.AppendJSON(nil, o.print))
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

// nothingProbed says why no kernel is in the list.
func (s *Session) nothingProbed() string {
	if len(s.opts.Plan.Unplaced()) > 0 {
		return "no kernel that was loaded has an instruction that a program wants"
	}
	return "no kernel that a program wants was loaded"
}

// kernels shows which kernels were probed and why others were not.
func (o *output) kernels(s *Session, all []Kernel) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(all) == 0 {
		o.say(s.nothingProbed())
	}
	if o.format != FormatJSON || o.said != nil {
		for _, line := range s.kernelLines(all) {
			o.tell([]byte(escape.Line("%s", line)))
		}
	}
	if o.format != FormatJSON {
		return
	}
	for i := range all {
		k := &all[i]
		line := map[string]any{"kernel": k.Name, "demangled": fatbin.Demangle(k.Name), "images": k.Images, "sites": k.Sites, "unprobed": k.Reason}
		if s.seesLaunches() {
			line["launched"] = k.Ran
		}
		if k.Launches > 0 {
			line["launches"] = k.Launches
		}
		if k.From != "" {
			line["from"] = k.From
		}
		if k.Unprobed > 0 {
			line["launches_unprobed"], line["unprobed"] = k.Unprobed, k.UnprobedWhy
		}
		if len(k.Notes) > 0 {
			line["notes"] = k.Notes
		}
		if checked := s.checked(k); checked != nil {
			line["verify"] = checked.json(k)
		}
		o.object(line)
	}
}

// mostSites bounds the places that are listed for a reader; a document has all.
const mostSites = 64

// sites says what the numbers are that programs read as ctx->site.
func (o *output) sites(all []nvattach.NumberedSite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(all) > 0 && o.format != FormatJSON {
		o.write([]byte("sites\n"))
	}
	for i := range all {
		s := &all[i]
		if o.format == FormatJSON {
			o.object(map[string]any{
				"site": s.Number, "program": s.Program, "kernel": s.Kernel, "kind": s.Kind.String(), "insn": s.Insn,
				"instruction": s.Text, "file": s.File, "line": s.Line,
			})
			continue
		}
		if i == mostSites {
			o.write(fmt.Appendf(nil, "  … and %d more; --maps json lists all\n", len(all)-i))
			return
		}
		o.write([]byte(escape.Line("  %d: %s", s.Number, s.Site.String())))
	}
}

// fault shows that something is missing.
func (o *output) fault(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.say(err.Error())
}

func (o *output) say(text string) {
	if len(o.notices) < maxNotices {
		o.notices = append(o.notices, text)
	}
	if o.format == FormatJSON {
		o.object(map[string]any{"notice": text})
		if o.said == nil {
			return
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		o.tell([]byte(escape.Line("nvtrace: %s", line)))
	}
}

// tell writes what is no contents of maps.
func (o *output) tell(b []byte) {
	if o.said == nil {
		o.write(b)
		return
	}
	o.said.Write(b) // to who reads along
}
