package view

import (
	"encoding/json"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// callWords writes library calls into lines of JSON.
type callWords struct {
	style api.Style
	text  []byte
}

// appendJSON adds to an event's line of JSON what is known of library calls:
// "during" are the calls that it happened in, the outermost first; "decoded" is
// a call, or what came of it, in words.
func (c *callWords) appendJSON(line []byte, e *observe.Event) []byte {
	ev, f := e.Event, e.Frame
	end := len(line) - len("}\n")
	if f == nil || end < 0 || string(line[end:]) != "}\n" {
		return line
	}
	var more struct {
		During  []string `json:"during,omitempty"`
		Decoded string   `json:"decoded,omitempty"`
	}
	outer := f
	switch ev.Kind {
	case traces.KindCall:
		c.text = api.AppendCall(c.text[:0], f, ev, &e.Tracker.Names, &c.style)
		more.Decoded, outer = string(c.text), f.Parent
	case traces.KindReturn:
		c.text = api.AppendReturn(c.text[:0], f, ev, &c.style)
		more.Decoded, outer = strings.TrimLeft(string(c.text), " ="), f.Parent
	}
	for ; outer != nil; outer = outer.Parent {
		more.During = append(more.During, outer.Name)
	}
	slices.Reverse(more.During)
	b, err := json.Marshal(&more)
	if err != nil || len(b) <= len("{}") {
		return line
	}
	line = append(line[:end], ',')
	return append(append(line, b[1:]...), '\n')
}
