package traces

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestSchema: SCHEMA.md names all kinds, flags and keys that recordings have, and no others.
func TestSchema(t *testing.T) {
	b, err := os.ReadFile("SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	page, code := string(b), false
	for i, line := range strings.Split(page, "\n") {
		if code = code != strings.HasPrefix(line, "```"); !code && utf8.RuneCountInString(line) > 100 && !strings.HasPrefix(line, "    ") {
			t.Errorf("line %d has %d columns", i+1, utf8.RuneCountInString(line))
		}
	}
	items := func(heading string) (names []string) {
		_, part, ok := strings.Cut(page, "\n"+heading+"\n")
		if !ok {
			t.Fatalf("no section %s", heading)
		}
		part, _, _ = strings.Cut(part, "\n#")
		for _, m := range regexp.MustCompile("(?m)^\\* `(\\w+)`").FindAllStringSubmatch(part, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return names
	}
	same := func(what string, documented, want []string) {
		t.Helper()
		slices.Sort(want)
		if !slices.Equal(documented, want) {
			t.Errorf("%s: the page has\n%s\nrecordings\n%s", what, documented, want)
		}
	}
	var kinds []string
	for k := KindInvalid + 1; k < KindOther; k++ {
		kinds = append(kinds, k.String())
	}
	same("kinds", items("### Kinds"), kinds)
	same("flags", items("### Flags"), slices.Clone(flagNames[:]))

	var text bytes.Buffer
	h := &Header{
		Tool: "t", Start: 1, Arch: "a", Kernel: "k", Driver: "d", Argv: []string{"a"}, PID: 1, UVMMajor: 1, Host: "h", Boot: "b",
		GPUs: []string{"g"}, Container: "c", Rank: map[string]string{"RANK": "0"}, API: "driver", CallsFrom: 1,
	}
	w, err := NewWriter(&text, h, &WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events := randomEvents(1, 2000)
	for _, e := range append(events, &Event{Kind: KindMap, Name: "m", Data: "{}"}, &Event{Kind: KindProbe, Name: "k", Probe: &Probe{Images: 1}}) {
		w.Write(e)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	head, keys := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text.String()) {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &members); err != nil {
			t.Fatal(err)
		}
		to := keys
		if len(head) == 0 {
			to = head
		}
		for name := range members {
			to[name] = true
		}
	}
	delete(head, "k")
	same("the header's keys", items("## Header (`\"k\":\"header\"`), the first record"), slices.Collect(maps.Keys(head)))
	same("keys", items("### Keys"), slices.Collect(maps.Keys(keys)))
}
