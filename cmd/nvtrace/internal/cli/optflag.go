package cli

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// OptString is a flag that may stand alone ("--json") or have a value
// ("--json=FILE").
type OptString struct {
	Given bool
	Value string
}

// String implements flag.Value.
func (o *OptString) String() string { return o.Value }

// IsBoolFlag lets the flag stand alone.
func (o *OptString) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (o *OptString) Set(s string) error {
	o.Given = true
	if s != "true" {
		o.Value = s
	}
	return nil
}

// RegisterJSON makes it the flag by which verbs print as JSON.
func (o *OptString) RegisterJSON(fs *flag.FlagSet) {
	fs.Var(o, "json", "print as JSON, to stdout or with =`FILE` to a file")
}

// Times is a flag that says more when it is repeated: how often it stands there.
type Times int

// String implements flag.Value.
func (n *Times) String() string { return "" }

// IsBoolFlag lets the flag stand alone.
func (n *Times) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (n *Times) Set(s string) error {
	on, err := strconv.ParseBool(s)
	if *n++; !on {
		*n = 0
	}
	return err
}

// StringList is a flag that may be given several times.
type StringList []string

// String implements flag.Value.
func (l *StringList) String() string { return "" }

// Set implements flag.Value.
func (l *StringList) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// ParseSize reads "64M"; "" is 0.
func ParseSize(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	digits := strings.TrimRight(s, "KMGTiB")
	shift, ok := map[string]uint{"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[strings.TrimSuffix(strings.TrimSuffix(s[len(digits):], "B"), "i")]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n < 0 || n > (1<<62)>>shift {
		return 0, fmt.Errorf("%q is no size: want a number with K, M, G or T", s)
	}
	return n << shift, nil
}

// SecondsFlag is a span of time: seconds, or with a unit.
type SecondsFlag time.Duration

// Set implements flag.Value.
func (f *SecondsFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if n, bad := strconv.ParseFloat(s, 64); bad == nil {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < 0 {
		return errors.New("want seconds, or a time with its unit, such as 200ms")
	}
	*f = SecondsFlag(d)
	return nil
}

// String implements flag.Value.
func (f *SecondsFlag) String() string {
	if f == nil || *f == 0 {
		return ""
	}
	return time.Duration(*f).String()
}

// TakesValue reports whether a flag is followed by a word.
func TakesValue(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return !ok || !b.IsBoolFlag()
}
