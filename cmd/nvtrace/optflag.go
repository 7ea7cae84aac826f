package main

import "flag"

// optString is a flag that may stand alone ("--json") or have a value
// ("--json=FILE").
type optString struct {
	set   bool
	value string
}

// String implements flag.Value.
func (o *optString) String() string { return o.value }

// IsBoolFlag lets the flag stand alone.
func (o *optString) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (o *optString) Set(s string) error {
	o.set = true
	if s != "true" {
		o.value = s
	}
	return nil
}

// registerJSON makes it the flag by which verbs print as JSON.
func (o *optString) registerJSON(fs *flag.FlagSet) {
	fs.Var(o, "json", "print as JSON, to stdout or with =`FILE` to a file")
}

// stringList is a flag that may be given several times.
type stringList []string

// String implements flag.Value.
func (l *stringList) String() string { return "" }

// Set implements flag.Value.
func (l *stringList) Set(s string) error {
	*l = append(*l, s)
	return nil
}
