package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRender: Markdown and its HTML.
func TestRender(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"# A & B\n", "<h1 id=\"a--b\">A &amp; B</h1>\n"},
		{"one\ntwo\n\nthree", "<p>one\ntwo</p>\n<p>three</p>\n"},
		{"a `x < y | z` **bold**", "<p>a <code>x &lt; y | z</code> <strong>bold</strong></p>\n"},
		{"[a `b`](c.md#d) ![p](q.svg)", "<p><a href=\"L:c.md#d\">a <code>b</code></a> <img src=\"L:q.svg\" alt=\"p\"></p>\n"},
		{"* one\n  more\n* two\n", "<ul>\n<li>one\nmore</li>\n<li>two</li>\n</ul>\n"},
		{"1. one\n2. two\n", "<ol>\n<li>one</li>\n<li>two</li>\n</ol>\n"},
		{"```c\n<a>\n\n  b\n```\nx", "<pre><code>&lt;a&gt;\n\n  b\n</code></pre>\n<p>x</p>\n"},
		{"    nvtrace -e '*'\n\n    two\n\nx", "<pre><code>nvtrace -e &#39;*&#39;\n\ntwo\n</code></pre>\n<p>x</p>\n"},
		{"| a | b |\n|---|---|\n| `x|y` | c\\|d |\n", "<div class=\"wide\"><table>\n<tr><th>a</th><th>b</th></tr>\n<tr><td><code>x|y</code></td><td>c|d</td></tr>\n</table></div>\n"},
		{"get\\_uid `\\_`", "<p>get_uid <code>\\_</code></p>\n"},
		{"<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"},
		{"```\nnever closed", "<pre><code>never closed\n</code></pre>\n"},
	} {
		if got := render(tt.text, func(s string) string { return "L:" + s }); got != tt.want {
			t.Errorf("%q:\ngot  %q\nwant %q", tt.text, got, tt.want)
		}
	}
}

// TestLinks: no link of the pages, nor of the README, leads nowhere.
func TestLinks(t *testing.T) {
	const docs = "../../docs"
	all, err := read(docs)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.check(docs); err != nil { // in a clone, without what nvtrace writes
		t.Error(err)
	}
	files, err := filepath.Glob(docs + "/samples/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no samples")
	}
	tools := "# Tools\n"
	for _, f := range files {
		tools += "\n## " + strings.TrimSuffix(filepath.Base(f), ".txt") + "\n\nIt.\n\n```\nsource\n```\n"
	}
	if err := all.generate(docs, func(topic string) (string, error) {
		if topic == "tools" {
			return tools, nil
		}
		return "# Probes\n", nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, m := range menu {
		if all[m.name] == "" {
			t.Errorf("the menu has %s, which is not there", m.name)
		}
	}
	if err := all.check(docs); err != nil {
		t.Error(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	render(string(readme), func(target string) string {
		file, part, _ := strings.Cut(target, "#")
		if strings.Contains(target, "://") {
			return target
		}
		if page, ok := all[strings.TrimPrefix(file, "docs/")]; ok && strings.HasPrefix(file, "docs/") {
			found := part == ""
			for _, a := range anchors(page) {
				found = found || a == part
			}
			if !found {
				t.Errorf("README.md links to %s, which has no such heading", target)
			}
		} else if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
			t.Errorf("README.md links to %s, which is not there", target)
		}
		return target
	})
	// What leads nowhere is found.
	bad := pages{"a.md": "[x](nothing.md) [y](b.md#no)", "b.md": "# yes\n"}
	if err := bad.check(docs); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("%v", err)
	}
}

// TestSearch: all sections of all pages are found by their words, and links to them lead somewhere.
func TestSearch(t *testing.T) {
	all := pages{"a.md": "# A\n\nOne.\n\n## The `second`\n\n```\n# no heading\n```\nTwo.\n", "b.md": "# B\n\n| x |\n"}
	b, err := all.index()
	if err != nil {
		t.Fatal(err)
	}
	var got []section
	text, ok := strings.CutPrefix(string(b), "const sections=")
	if err := json.Unmarshal([]byte(strings.TrimSuffix(text, ";\n")), &got); err != nil || !ok {
		t.Fatalf("%v: %s", err, b)
	}
	want := []section{{"a.html", "A", "A", "a", "One."}, {"a.html", "A", "The second", "the-second", "# no heading Two."}, {"b.html", "B", "B", "b", "x"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// TestPage: a page has a title, the menu and what was written.
func TestPage(t *testing.T) {
	all := pages{"slow.md": "# Slow\n\n[k](kernels.md#a) [s](../README.md)\n", "kernels.md": "# A\n"}
	got := all.page("slow.md", all["slow.md"])
	for _, want := range []string{"<title>Slow - nvtrace</title>", "<a href=\"kernels.html#a\">k</a>", "<a href=\"one-liners.html\">one-liners</a>", "search.js", "initial-scale=1"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}
