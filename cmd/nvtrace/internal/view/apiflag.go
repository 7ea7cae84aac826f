package view

import (
	"flag"
	"strings"

	"nvtrace/nvattach/api"
)

// APIFlag is --api, --api=LIBRARIES or --api=none. Among the libraries may stand "all" and
// "count", which also say how.
type APIFlag struct {
	Given, None bool
	Libraries   api.Selection
	all         bool // calls are recorded that tell little, too
	Count       bool // no calls are recorded, but counted
}

// Register adds --api to a verb's flags; usage says what it is for there.
func (f *APIFlag) Register(fs *flag.FlagSet, usage string) { fs.Var(f, "api", usage) }

// String implements flag.Value.
func (f *APIFlag) String() string { return "" }

// IsBoolFlag lets the flag stand alone.
func (f *APIFlag) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (f *APIFlag) Set(list string) (err error) {
	if f.None = list == "none"; f.None {
		f.Given = false
		return nil
	}
	if list == "true" {
		list = ""
	}
	f.Given = true
	var names []string
	for word := range strings.SplitSeq(list, ",") {
		switch word = strings.TrimSpace(word); {
		case strings.EqualFold(word, "count"):
			f.Count = true
			continue
		case strings.EqualFold(word, "all"):
			f.all = true
		}
		names = append(names, word)
	}
	f.Libraries, err = api.ParseSelection(strings.Join(names, ","))
	return err
}

// Inner reports whether calls that say little are counted by the calls that they are made within.
func (f *APIFlag) Inner() bool { return f.Given && !f.all && !f.Count }

// Counts says which functions are counted in the program and not recorded, and whether those
// of them that fail are; nil: none.
func (f *APIFlag) Counts() func(name string) (count, failed bool) {
	switch {
	case f.Count:
		return func(string) (bool, bool) { return true, false }
	case !f.Given || f.all:
		return nil
	}
	return func(name string) (bool, bool) { return api.Query(name), true }
}
