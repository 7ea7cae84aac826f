// Command site makes a static site of the folder docs, with pages that nvtrace itself
// writes: the references of probes, verbs and flags, and a page for each tool. All of it works
// without a server, the search too.
//
//	go run ./internal/site -nvtrace bin/nvtrace -o bin/site docs
//	tmux capture-pane -p | go run ./internal/site -svg >docs/pictures/top.svg
package main

import (
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	nvtrace := flag.String("nvtrace", "bin/nvtrace", "the program that writes the reference")
	out := flag.String("o", "bin/site", "folder to write to")
	picture := flag.Bool("svg", false, "make a picture of the text of a terminal, from stdin to stdout")
	flag.Parse()
	if *picture {
		text, err := io.ReadAll(os.Stdin)
		if err == nil {
			_, err = io.WriteString(os.Stdout, svg(string(text)))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "site:", err)
			os.Exit(1)
		}
		return
	}
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: site [-nvtrace FILE] [-o DIR] docs")
		os.Exit(2)
	}
	if err := build(*nvtrace, flag.Arg(0), *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// pages are the site's texts by name, "slow.md", as Markdown.
type pages map[string]string

// build writes the site.
func build(nvtrace, docs, out string) error {
	all, err := read(docs)
	if err != nil {
		return err
	}
	if err := all.generate(docs, func(topic string) (string, error) {
		b, err := exec.Command(nvtrace, "help", topic).Output()
		return string(b), err
	}); err != nil {
		return err
	}
	if err := all.check(docs); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	index, err := all.index()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "search.js"), append(index, search...), 0o644); err != nil {
		return err
	}
	for name, text := range all {
		file := filepath.Join(out, htmlName(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(all.page(name, text)), 0o644)); err != nil {
			return err
		}
	}
	return os.CopyFS(filepath.Join(out, "pictures"), os.DirFS(filepath.Join(docs, "pictures")))
}

// read returns the pages of a folder.
func read(docs string) (pages, error) {
	files, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		return nil, err
	}
	all := make(pages)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		all[filepath.Base(f)] = string(b)
	}
	for name, file := range elsewhere {
		b, err := os.ReadFile(filepath.Join(docs, file))
		if err != nil {
			return nil, err
		}
		all[name] = string(b)
	}
	return all, nil
}

// elsewhere are the pages of the site that do not lie in docs.
var elsewhere = map[string]string{
	"language.md": "../nvattach/script/README.md",
	"schema.md":   "../traces/SCHEMA.md",
	"glossary.md": "../GLOSSARY.md",
	"changes.md":  "../CHANGELOG.md",
	"security.md": "../SECURITY.md",
}

// topics are the pages that nvtrace writes, by what its verb help calls them.
var topics = map[string]string{"probes": "reference.md", "flags": "flags.md", "tools": "tools.md"}

// resolve returns the page that a page's link leads to, "" if that is no page.
func (all pages) resolve(from, file string) string {
	dir := "."
	if f, ok := elsewhere[from]; ok {
		dir = path.Dir(f)
	}
	file = path.Join(dir, file)
	for name, f := range elsewhere {
		if f == file {
			return name
		}
	}
	if _, ok := all[file]; ok && elsewhere[file] == "" {
		return file
	}
	return ""
}

// generate adds what nvtrace writes: reference.md, flags.md, tools.md, and a page for each tool
// with a sample of its output.
func (all pages) generate(docs string, help func(topic string) (string, error)) error {
	probes, err := help("probes")
	if err != nil {
		return fmt.Errorf("nvtrace help probes: %w", err)
	}
	all["reference.md"] = probes
	flags, err := help("flags")
	if err != nil {
		return fmt.Errorf("nvtrace help flags: %w", err)
	}
	all["flags.md"] = flags
	tools, err := help("tools")
	if err != nil {
		return fmt.Errorf("nvtrace help tools: %w", err)
	}
	head, rest, ok := strings.Cut(tools, "\n## ")
	if !ok {
		return errors.New("nvtrace help tools: no tools")
	}
	var index strings.Builder
	index.WriteString(head + "\n| tool | answers |\n|---|---|\n")
	for part := range strings.SplitSeq(rest, "\n## ") {
		name, text, _ := strings.Cut(part, "\n")
		sample, err := os.ReadFile(filepath.Join(docs, "samples", name+".txt"))
		if err != nil {
			return err
		}
		doc, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
		fmt.Fprintf(&index, "| [%s](tool-%s.md) | %s |\n", name, name, doc)
		page := "# nvtrace tool " + name + "\n" + text
		page = strings.Replace(page, "\n```\n", "\n## What it shows\n\n```\n"+strings.TrimRight(string(sample), "\n")+"\n```\n\n## Its program\n\n```\n", 1)
		all["tool-"+name+".md"] = page
	}
	all["tools.md"] = index.String()
	return nil
}

// htmlName is the file of a page.
func htmlName(name string) string { return strings.TrimSuffix(name, ".md") + ".html" }

// check refuses links that lead nowhere: to pages, to their headings, to files of the
// repository.
func (all pages) check(docs string) error {
	var errs error
	for _, name := range all.names() {
		render(all[name], func(target string) string {
			file, part, _ := strings.Cut(target, "#")
			if strings.Contains(target, "://") {
				return target
			}
			page := name
			if file != "" {
				page = all.resolve(name, file)
			}
			if page != "" {
				if part != "" && !slices.Contains(anchors(all[page]), part) {
					errs = errors.Join(errs, fmt.Errorf("%s links to %s, which has no such heading", name, target))
				}
			} else if _, err := os.Stat(filepath.Join(docs, path.Dir(elsewhere[name]), file)); err != nil {
				errs = errors.Join(errs, fmt.Errorf("%s links to %s, which is not there", name, target))
			}
			return target
		})
	}
	return errs
}

// anchors are what a page's headings are linked by.
func anchors(text string) (list []string) {
	for line := range strings.Lines(text) {
		if m := headingRE.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			list = append(list, anchor(m[2]))
		}
	}
	return list
}

func (all pages) names() (list []string) {
	for name := range all {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// menu are the pages that every page leads to.
var menu = []struct{ title, name string }{
	{"nvtrace", "index.md"},
	{"start", "first.md"},
	{"where", "where.md"},
	{"slow", "slow.md"},
	{"kernels", "kernels.md"},
	{"memory", "memory.md"},
	{"failures", "failing.md"},
	{"hangs", "hanging.md"},
	{"ranks", "fleet.md"},
	{"metrics", "metrics.md"},
	{"one-liners", "one-liners.md"},
	{"tools", "tools.md"},
	{"tracing", "tracing.md"},
	{"probes", "probes.md"},
	{"reference", "reference.md"},
	{"flags", "flags.md"},
	{"language", "language.md"},
	{"recordings", "recordings.md"},
	{"files", "files.md"},
	{"cost", "cost.md"},
	{"limits", "limits.md"},
	{"comparison", "comparison.md"},
}

const style = `body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem;color:#222;background:#fff}
nav{border-bottom:1px solid #ccc;padding-bottom:.5rem;display:flex;flex-wrap:wrap;gap:0 .8rem}nav a{white-space:nowrap}
a{color:#05c;text-decoration:none}a:hover{text-decoration:underline}
pre{background:#f4f4f4;padding:.7rem;overflow-x:auto;font-size:14px;line-height:1.35}code{background:#f4f4f4;font-size:.92em;overflow-wrap:anywhere}pre code{background:none;font-size:1em;overflow-wrap:normal}
#q{font:inherit;max-width:12rem}#found:empty{display:none}mark{background:#fd6}
.wide{overflow-x:auto}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:left;vertical-align:top}img{max-width:100%}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre,code{background:#262626}a{color:#7ab8ff}td,th,nav{border-color:#444}}`

// page is a page as HTML.
func (all pages) page(name, text string) string {
	title := strings.TrimPrefix(strings.SplitN(text, "\n", 2)[0], "# ")
	if name != "index.md" {
		title += " - nvtrace"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><title>%s</title>\n<style>%s</style></head>\n<body><nav>", html.EscapeString(title), style)
	for _, m := range menu {
		fmt.Fprintf(&b, "<a href=\"%s\">%s</a>", htmlName(m.name), m.title)
	}
	b.WriteString("<input id=\"q\" type=\"search\" placeholder=\"search\" aria-label=\"search\"></nav>\n<ol id=\"found\"></ol>\n<main>\n")
	b.WriteString(render(text, func(target string) string {
		file, part, hash := strings.Cut(target, "#")
		switch page := all.resolve(name, file); {
		case strings.Contains(target, "://"), file == "":
			return target
		case page != "":
			file = htmlName(page)
		case strings.HasSuffix(file, ".png"), strings.HasSuffix(file, ".svg"):
		default: // a file of the repository, which the site does not have
			return ""
		}
		if hash {
			return file + "#" + part
		}
		return file
	}))
	b.WriteString("</main><script src=\"search.js\"></script></body></html>\n")
	return b.String()
}
