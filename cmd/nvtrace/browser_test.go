package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/internal/need"
)

// watchPage is put in front of a page's own scripts, askPage behind them: it says what they
// have drawn, points at something in the timeline, zooms, and opens a call of the flame graph.
const (
	watchPage = `<script>const errors = []; addEventListener('error', e => errors.push(e.message)); addEventListener('unhandledrejection', e => errors.push(String(e.reason))); addEventListener('securitypolicyviolation', e => errors.push('asks for ' + e.blockedURI));</script>`
	askPage   = `<script>
(() => {
  const $ = s => document.querySelector(s), $$ = s => [...document.querySelectorAll(s)];
  const isInk = (d, i) => d[i + 3] > 200 && Math.max(d[i], d[i + 1], d[i + 2]) - Math.min(d[i], d[i + 1], d[i + 2]) > 40;
  const look = c => {
    const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {willReadFrequently: true});
    copy.drawImage(c, 0, 0);
    const d = copy.getImageData(0, 0, c.width, c.height).data, r = c.getBoundingClientRect();
    let drawn = 0, at = -1;
    for (let i = 0; i < d.length; i += 4) if (isInk(d, i)) { drawn++; if (at < 0) at = i / 4; }
    return {drawn, x: Math.round(r.left), y: Math.round(r.top), w: Math.round(r.width), h: Math.round(r.height),
      atX: r.left + (at % c.width + 0.5) * r.width / c.width, atY: r.top + (Math.floor(at / c.width) + 0.5) * r.height / c.height};
  };
  const timeline = $('#timeline canvas'), seen = {errors, tables: {}};
  seen.timeline = look(timeline);
  if (!$('#memory').hidden) seen.memory = look($('#memory canvas'));
  for (const s of $$('section')) if (s.querySelector('table')) seen.tables[s.querySelector('h2').textContent] = s.querySelectorAll('td').length;
  const at = {clientX: seen.timeline.atX, clientY: seen.timeline.atY, bubbles: true, cancelable: true};
  timeline.dispatchEvent(new PointerEvent('pointermove', at));
  seen.told = $('#timeline output').value;
  seen.scrolls = timeline.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: -100}));
  seen.zooms = !timeline.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: -100, ctrlKey: true}));
  seen.zoomed = look(timeline).drawn;
  seen.calls = $$('#flame button').length;
  $$('#flame button').at(-1).click();
  seen.opened = $('#flame output').value;
  seen.asked = performance.getEntriesByType('resource').map(e => e.name);
  seen.wide = document.documentElement.scrollWidth - innerWidth;
  const out = document.createElement('pre');
  out.id = 'seen';
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
})();
</script>`
)

// seenCanvas is how much is drawn on a canvas, in colour, and where it is on the page.
type seenCanvas struct{ Drawn, X, Y, W, H int }

// seenPage is what askPage says.
type seenPage struct {
	Errors, Asked       []string
	Timeline            seenCanvas
	Memory              *seenCanvas
	Tables              map[string]int
	Told, Opened        string
	Scrolls, Zooms      bool
	Zoomed, Calls, Wide int
}

// browser runs Chromium without a window on a file, and returns what it prints.
func browser(t *testing.T, chromium string, size image.Point, file string, flags ...string) (stdout, stderr string) {
	t.Helper()
	profile := t.TempDir()
	t.Cleanup(func() { // what it has left running may still write there
		need.Until(t, func() bool { return os.RemoveAll(profile) == nil })
	})
	args := append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-dev-shm-usage", "--enable-logging=stderr", "--user-data-dir=" + profile, fmt.Sprintf("--window-size=%d,%d", size.X, size.Y),
	}, flags...)
	cmd := exec.CommandContext(need.Limit(t), chromium, append(args, "file://"+file)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &errs)
	}
	return out.String(), errs.String()
}

// ask opens a page in a browser, in a frame of some size since windows can't be as narrow as
// a phone, and returns what its scripts have drawn.
func ask(t *testing.T, chromium string, size image.Point, page string) *seenPage {
	t.Helper()
	file := filepath.Join(t.TempDir(), "asked.html")
	page = strings.Replace(page, "<body>", "<body>"+watchPage, 1)
	page = strings.Replace(page, "</body>", askPage+"</body>", 1)
	frame := fmt.Sprintf(`<!DOCTYPE html><body onload="seen.textContent = frames[0].document.getElementById('seen').textContent"><pre id="seen"></pre>
<iframe width="%d" height="%d" frameborder="0" srcdoc="%s"></iframe>`, size.X, size.Y, html.EscapeString(page))
	if err := os.WriteFile(file, []byte(frame), 0o644); err != nil {
		t.Fatal(err)
	}
	dom, stderr := browser(t, chromium, size.Add(image.Pt(100, 100)), file, "--dump-dom")
	_, rest, ok := strings.Cut(dom, `<pre id="seen">`)
	text, _, ok2 := strings.Cut(rest, "</pre>")
	if !ok || !ok2 {
		t.Fatalf("the page does not say what it has: %s\n%s", stderr, dom[max(0, len(dom)-1000):])
	}
	var seen seenPage
	if err := json.Unmarshal([]byte(html.UnescapeString(text)), &seen); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(stderr, "\n") {
		if strings.Contains(line, "CONSOLE") {
			seen.Errors = append(seen.Errors, line)
		}
	}
	return &seen
}

// inColour counts points of a picture's part that are not grey.
func inColour(m image.Image, part image.Rectangle) (n int) {
	part = part.Intersect(m.Bounds())
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			r, g, b, _ := m.At(x, y).RGBA()
			if max(r, g, b)-min(r, g, b) > 40<<8 {
				n++
			}
		}
	}
	return n
}

// TestPageInBrowser opens pages of recordings in Chromium, as on a desk and on a phone.
func TestPageInBrowser(t *testing.T) {
	need.OneThread(t)
	chromium := need.Tool(t, "chromium", "NVTRACE_CHROMIUM")
	for _, r := range []struct {
		name, recording, table, told string
		memory                       bool
	}{
		{"training", "../../traces/corpus/matmul.nvt", "Device calls", "python3.12 909", true},
		{"gpu", "internal/export/testdata/gpu.jsonl", "What GPUs did", "GPU, ", false},
	} {
		file := filepath.Join(t.TempDir(), "page.html")
		var stderr bytes.Buffer
		e := &cli.Env{Stdout: os.Stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}
		if status := verbs.Main(e, []string{"report", "--html", file, r.recording}); status != cli.ExitOK {
			t.Fatalf("status %d: %s", status, &stderr)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		page := string(b)
		for _, size := range []image.Point{{1280, 800}, {390, 844}} {
			t.Run(fmt.Sprintf("%s/%d", r.name, size.X), func(t *testing.T) {
				s := ask(t, chromium, size, page)
				if len(s.Errors) > 0 || len(s.Asked) > 0 {
					t.Errorf("scripts failed: %q; the page asked for %q", s.Errors, s.Asked)
				}
				cells := 0
				for title, n := range s.Tables {
					if strings.HasPrefix(title, r.table) {
						cells = n
					}
				}
				if cells == 0 {
					t.Errorf("no table %s among %v", r.table, s.Tables)
				}
				if s.Timeline.Drawn < 20 || s.Zoomed < 20 || (s.Memory != nil) != r.memory || r.memory && s.Memory.Drawn < 100 {
					t.Errorf("the timeline has %d points in colour, %d when zoomed, memory %+v", s.Timeline.Drawn, s.Zoomed, s.Memory)
				}
				if !strings.Contains(s.Told, r.told) || strings.Contains(s.Told, "nothing") {
					t.Errorf("the timeline says %q where it has something, want %q", s.Told, r.told)
				}
				if !s.Scrolls || !s.Zooms {
					t.Errorf("the wheel moves the page: %v; with Ctrl it zooms: %v", s.Scrolls, s.Zooms)
				}
				if s.Calls < 3 || !strings.HasSuffix(s.Opened, "% of all") {
					t.Errorf("the flame graph has %d calls, and says %q of the last", s.Calls, s.Opened)
				}
				if s.Wide > 0 {
					t.Errorf("the page is %d pixels wider than the window", s.Wide)
				}
				shot := filepath.Join(t.TempDir(), "page.png")
				tall := image.Pt(size.X, s.Timeline.Y+s.Timeline.H+50)
				browser(t, chromium, tall, file, "--screenshot="+shot)
				picture, err := os.ReadFile(shot)
				if err != nil {
					t.Fatal(err)
				}
				m, err := png.Decode(bytes.NewReader(picture))
				if err != nil {
					t.Fatal(err)
				}
				if part := image.Rect(0, 0, s.Timeline.W, s.Timeline.H).Add(image.Pt(s.Timeline.X, s.Timeline.Y)); m.Bounds().Size() != tall || inColour(m, part) < 20 {
					t.Errorf("a picture of %v has %d points in colour at %v", m.Bounds(), inColour(m, part), part)
				}
			})
		}
		if r.memory { // it would be seen if a script failed, or asked for something
			t.Run("mistakes", func(t *testing.T) {
				s := ask(t, chromium, image.Pt(1280, 800), strings.Replace(page, "</body>", "<script>new Image().src = 'http://127.0.0.1:1/'; mistake();</script></body>", 1))
				if got := fmt.Sprint(s.Errors); !strings.Contains(got, "mistake is not defined") || !strings.Contains(got, "asks for") && !strings.Contains(got, "Content Security Policy") {
					t.Errorf("only these are seen: %q", s.Errors)
				}
			})
		}
	}
}
