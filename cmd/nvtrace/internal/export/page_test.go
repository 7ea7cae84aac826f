package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"nvtrace/internal/need"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// page makes a page, and reads what its script draws.
func page(t testing.TB, h *traces.Header, events func(yield func(*traces.Event) bool), tables ...PageTable) (string, *pageData) {
	t.Helper()
	d := ioctl.NewDecoder(h)
	p := NewPage(h, d)
	feed := following(d, p)
	for ev := range events {
		feed.Event(ev)
	}
	var out bytes.Buffer
	if err := p.Write(&out, "a <summary> & more", tables); err != nil {
		t.Fatal(err)
	}
	s := out.String()
	_, rest, ok := strings.Cut(s, `<script type="application/json" id="data">`)
	text, _, ok2 := strings.Cut(rest, "</script>")
	var data pageData
	if err := json.Unmarshal([]byte(text), &data); err != nil || !ok || !ok2 {
		t.Fatalf("%v in %.200s", err, text)
	}
	if !utf8.ValidString(s) || strings.Count(s, "<script") != 2 || strings.Count(s, "</script>") != 2 {
		t.Errorf("not UTF-8, or not two scripts")
	}
	for _, bad := range []string{"http://", "https://", "src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"} {
		if strings.Contains(s, bad) {
			t.Errorf("the page asks for something else: %s", bad)
		}
	}
	if !strings.Contains(s, `content="default-src 'none';`) {
		t.Error("the page may use the network")
	}
	if int64(pageBuckets)*data.Width < data.Last {
		t.Errorf("%d buckets of %d ns for %d ns", pageBuckets, data.Width, data.Last)
	}
	for _, lane := range data.Lanes {
		for _, row := range lane.Rows {
			for i := 0; i < len(row); {
				at, n := row[i], int(row[i+1])
				if at < 0 || at >= pageBuckets || n < 1 || n > pageTop {
					t.Fatalf("bucket %d has %d names", at, n)
				}
				for k := i + 2; k < i+2+2*n; k += 2 {
					if row[k] < 0 || row[k] >= int64(len(data.Names)) || row[k+1] <= 0 {
						t.Fatalf("bucket %d: name %d, %d ns", at, row[k], row[k+1])
					}
				}
				i += 2 + 2*n
			}
		}
	}
	return s, &data
}

func (f *pageFlame) sum(of func(*pageFlame) int64) int64 {
	n := of(f)
	for _, k := range f.Children {
		n += k.sum(of)
	}
	return n
}

// TestPage holds pages of recordings against their summaries.
func TestPage(t *testing.T) {
	for _, file := range append(corpus(t), "testdata/api.jsonl") {
		h, events := recording(t, file)
		x := export(t, h, slices.Values(events))
		_, data := page(t, h, slices.Values(events))
		wantCalls, wantTime := int64(0), int64(0)
		for _, c := range x.report.Calls {
			wantCalls += int64(c.Calls)
			wantTime += c.Total
		}
		for _, n := range x.drawn.calls {
			wantCalls += n
		}
		wantCalls -= x.drawn.calls["recording"]
		for name, n := range x.drawn.calls {
			isIoctl := slices.ContainsFunc(x.report.Calls, func(c ioctl.CallCount) bool { return strings.TrimSpace(c.Name+" "+c.Sub) == name })
			if isIoctl {
				wantCalls -= n
			} else {
				wantTime += x.drawn.time[name]
			}
		}
		for _, c := range x.api.Functions {
			wantCalls += int64(c.Calls - c.Unfinished)
			wantTime += c.Self
		}
		if calls, time := data.Flame.sum(func(f *pageFlame) int64 { return f.Calls }), data.Flame.Total; calls != wantCalls || time != wantTime {
			t.Errorf("%s: %d calls in %d ns, want %d in %d", file, calls, time, wantCalls, wantTime)
		}
		device := int64(0)
		for _, lane := range data.Lanes {
			row := lane.Rows[1]
			for i := 0; i < len(row); i += 2 + 2*int(row[i+1]) {
				for k := 0; k < int(row[i+1]); k++ {
					device += row[i+3+2*k]
				}
			}
		}
		want := int64(0)
		for _, ns := range x.drawn.time {
			want += ns
		}
		if device != want {
			t.Errorf("%s: %d ns of device calls on the timeline, want %d", file, device, want)
		}
		for what, q := range map[string]string{"vidmem": "vidmem allocated", "mapped": "mapped device memory"} {
			peak, pids := uint64(0), 0
			for key, n := range x.drawn.peak {
				if strings.HasSuffix(key, " "+q) {
					peak, pids = n, pids+1
				}
			}
			if got := slices.Max(append(data.Memory[what], 0)); pids == 1 && got != peak {
				t.Errorf("%s: %s at most %d, want %d", file, what, got, peak)
			}
		}
	}
}

// TestPageHostile has names that would end a script or a table, and more time, threads and
// names than a page has room for.
func TestPageHostile(t *testing.T) {
	need.OneThread(t)
	h := &traces.Header{Argv: []string{"</script><script>alert(1)</script>", "<b>", "\x1b[2J"}, PID: 1}
	s, data := page(t, h, func(yield func(*traces.Event) bool) {
		for i := range 20_000 {
			ev := &traces.Event{PID: 1, TID: int32(1 + i%300), Time: int64(i) * 1e9, FD: -1, Path: "/lib/</script>", Name: fmt.Sprint("</script><!--", i%9000)}
			ev.Kind = traces.KindCall
			if !yield(ev) {
				return
			}
			ev.Kind, ev.Dur = traces.KindReturn, 1e12
			if !yield(ev) {
				return
			}
		}
		yield(&traces.Event{Kind: traces.KindIoctl, PID: 1, TID: 1, Time: 1<<63 - 10, Dur: 5, FD: 3, Dev: "nvidiactl"})
		yield(&traces.Event{Kind: traces.KindIoctl, PID: 1, TID: 1, Time: 1<<63 - 10, Dur: 1 << 40, FD: 3, Dev: "nvidiactl"})
		yield(&traces.Event{Kind: traces.KindIoctl, PID: 1, TID: 1, Time: -1 << 63, Dur: 1<<63 - 1, FD: 3, Dev: "nvidiactl"})
	}, PageTable{Title: "<i>", Header: []string{">n", "</table>"}, Rows: [][]string{{"1", "</td><script>"}}})
	if len(data.Lanes) > pageLanes || len(data.Names) > pageNames || len(s) > 16<<20 {
		t.Errorf("%d threads, %d names, %d bytes", len(data.Lanes), len(data.Names), len(s))
	}
	for _, bad := range []string{"<b>", "<i>", "<script>alert", "\x1b", "</td><script>"} {
		if strings.Contains(s, bad) {
			t.Errorf("%q came through", bad)
		}
	}
	if !strings.Contains(s, "&lt;/td&gt;&lt;script&gt;") || !strings.Contains(s, "a &lt;summary&gt; &amp; more") {
		t.Error("a cell or the summary is missing")
	}
}
