package script

import (
	"embed"
	"path"
	"strings"
)

// toolFiles are programs that come with nvtrace. The first line of each, a comment, says
// what it is for; those behind it, up to the first probe, how to read what it shows.
//
//go:embed tools/*.nt
var toolFiles embed.FS

// A Tool is a program that comes with nvtrace.
type Tool struct {
	Name   string
	Doc    string // its purpose, one line
	Source string
}

// Tools returns the programs that come with nvtrace, by name.
func Tools() []Tool {
	entries, err := toolFiles.ReadDir("tools")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var list []Tool
	for _, e := range entries {
		b, err := toolFiles.ReadFile(path.Join("tools", e.Name()))
		if err != nil {
			panic("BUG: " + err.Error())
		}
		t := Tool{Name: strings.TrimSuffix(e.Name(), ".nt"), Source: string(b)}
		first, rest, _ := strings.Cut(t.Source, "\n")
		if strings.HasPrefix(first, "#!") {
			first, _, _ = strings.Cut(rest, "\n")
		}
		t.Doc = strings.TrimSuffix(strings.TrimPrefix(first, "// "), ".")
		list = append(list, t)
	}
	return list
}
