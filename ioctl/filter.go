package ioctl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/glob"
)

// Filter selects events by expressions of the form KEY=VALUE,VALUE,… or
// KEY!=VALUE,… A "!" before the first value negates too. Several expressions
// must all hold. Values are matched as a whole, without regard to case; in them
// "*" stands for any text and "?" for one character.
//
//	device   node name (nvidiactl, nvidia0) or kind (nvidiaN, nvidia-uvm)
//	ioctl    name or number of the request (NV_ESC_RM_CONTROL, UVM_*, 0x2a)
//	control  name or number of a control command (NV2080_*GPU*, 0x20800110)
//	class    name or number of the class of an allocation (*CHANNEL*, 0xc86f)
//	call     kind of event (ioctl, open, mmap, …)
//	pid, tid numbers
//	status   OK, or the name of an RM status, errno or library's result
//	         (NV_ERR_*, EINVAL, CUDA_ERROR_*); what has no result is not selected,
//	         not by status!=OK either
//	unknown  what the tables lack (control, class, request, size, any)
//	api      name of a library's function (cuMemAlloc*): its call and its return
//
// Notes about the recording itself, and gaps in it, are always selected.
type Filter struct {
	terms []term
}

type term struct {
	key    filterKey
	negate bool
	values []pattern
}

// pattern is one value: text that may have wildcards, and the number that it
// is, if it is one.
type pattern struct {
	text     string // lower case
	glob     bool
	number   uint64
	isNumber bool
}

type filterKey uint8

const (
	keyDevice filterKey = iota
	keyIoctl
	keyControl
	keyClass
	keyCall
	keyPID
	keyTID
	keyStatus
	keyUnknown
	keyAPI
)

var filterKeys = []string{"device", "ioctl", "control", "class", "call", "pid", "tid", "status", "unknown", "api"}

// ParseFilter compiles expressions; none select everything. The error of a bad
// one says which word is wrong and what is allowed.
func ParseFilter(exprs ...string) (*Filter, error) {
	f := &Filter{}
	for _, expr := range exprs {
		t, err := parseTerm(expr)
		if err != nil {
			return nil, fmt.Errorf("filter %q: %w", expr, err)
		}
		f.terms = append(f.terms, t)
	}
	return f, nil
}

func parseTerm(expr string) (term, error) {
	var t term
	key, list, ok := strings.Cut(expr, "=")
	if !ok {
		return t, fmt.Errorf("no %q in it; write KEY=VALUE, where KEY is one of %s", "=", strings.Join(filterKeys, ", "))
	}
	key, t.negate = strings.CutSuffix(key, "!")
	if rest, ok := strings.CutPrefix(list, "!"); ok {
		if t.negate {
			return t, fmt.Errorf("the value is negated twice")
		}
		list, t.negate = rest, true
	}
	i := slices.Index(filterKeys, strings.TrimSpace(key))
	if i < 0 {
		return t, fmt.Errorf("unknown key %q; it is one of %s", key, strings.Join(filterKeys, ", "))
	}
	t.key = filterKey(i)
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		p := pattern{text: strings.ToLower(word), glob: glob.Is(word)}
		if n, err := strconv.ParseUint(word, 0, 64); err == nil {
			p.number, p.isNumber = n, true
		}
		if err := checkWord(t.key, word, p); err != nil {
			return t, err
		}
		t.values = append(t.values, p)
	}
	return t, nil
}

// unknownWords are the values of the key "unknown", by what they select.
var unknownWords = map[string][]Unknown{
	"control": {UnknownControl},
	"closed":  {ClosedControl},
	"class":   {UnknownClass},
	"request": {UnknownRequest},
	"size":    {UnknownSize},
	"layout":  {UnknownBytes},
	"any":     {UnknownControl, ClosedControl, UnknownClass, UnknownRequest, UnknownSize, UnknownBytes},
}

// statusPrefixes begin the names of results: the resource manager's, errno's, and
// those of CUDA's libraries.
var statusPrefixes = []string{"nv_", "e", "cu", "nccl", "nvrtc_", "nvjitlink_"}

// checkWord refuses values that can't match anything.
func checkWord(key filterKey, word string, p pattern) error {
	if word == "" {
		return fmt.Errorf("an empty value for %q", filterKeys[key])
	}
	allowed := func(list []string) error {
		if p.glob || slices.Contains(list, p.text) {
			return nil
		}
		return fmt.Errorf("unknown %s %q; it is one of %s", filterKeys[key], word, strings.Join(list, ", "))
	}
	switch key {
	case keyIoctl, keyControl, keyClass:
		if !p.isNumber && !p.known(key) {
			return unknownName(key, word)
		}
	case keyDevice:
		if deviceByName(p.text) == DeviceOther {
			var names []string
			for _, n := range deviceNames[DeviceCtl:] {
				names = append(names, strings.ToLower(n))
			}
			return allowed(names)
		}
	case keyCall:
		var names []string
		for k := traces.KindOpen; k < traces.KindOther; k++ {
			names = append(names, k.String())
		}
		return allowed(names)
	case keyPID, keyTID:
		if !p.isNumber {
			return fmt.Errorf("%s %q is not a number", filterKeys[key], word)
		}
	case keyStatus:
		if p.text != "ok" && !p.glob && !p.isNumber && !slices.ContainsFunc(statusPrefixes, func(s string) bool { return strings.HasPrefix(p.text, s) }) {
			return fmt.Errorf("unknown status %q; it is OK, a name like NV_ERR_INVALID_ARGUMENT, EINVAL or CUDA_ERROR_INVALID_VALUE, or a number", word)
		}
	case keyUnknown:
		var names []string
		for n := range unknownWords {
			names = append(names, n)
		}
		slices.Sort(names)
		return allowed(names)
	}
	return nil
}

// Match reports whether the event and its decoded call are selected. A nil
// Filter selects everything.
func (f *Filter) Match(ev *traces.Event, c *Call) bool {
	if f == nil {
		return true
	}
	switch ev.Kind { // what says how far the recording can be believed
	case traces.KindNote, traces.KindLost, traces.KindGap, traces.KindCaptured:
		return true
	}
	for i := range f.terms {
		t := &f.terms[i]
		if t.key == keyStatus && !hasResult(ev, c) || t.match(ev, c) == t.negate {
			return false
		}
	}
	return true
}

func (t *term) match(ev *traces.Event, c *Call) bool {
	for i := range t.values {
		if t.values[i].match(t.key, ev, c) {
			return true
		}
	}
	return false
}

func (p *pattern) match(key filterKey, ev *traces.Event, c *Call) bool {
	switch key {
	case keyDevice:
		return p.name(ev.Dev) || c.Device != DeviceOther && p.name(c.Device.String())
	case keyIoctl:
		return c.Kind == traces.KindIoctl && p.named(c.Name, uint64(c.Nr))
	case keyControl:
		return c.Nr == escControl && c.rmSubject() && p.named(c.Sub, uint64(c.SubNr))
	case keyClass:
		return c.Nr != escControl && c.Nr != escVidHeap && c.rmSubject() && p.named(c.Sub, uint64(c.SubNr))
	case keyCall:
		return p.name(ev.Kind.String())
	case keyPID:
		return uint64(ev.PID) == p.number
	case keyTID:
		return uint64(ev.TID) == p.number
	case keyStatus:
		return p.status(ev, c)
	case keyAPI:
		return (ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn) && p.name(ev.Name)
	default:
		if p.glob {
			return p.name(c.Unknown.String())
		}
		return slices.Contains(unknownWords[p.text], c.Unknown)
	}
}

// rmSubject reports whether the call is an escape with a control command or class.
func (c *Call) rmSubject() bool {
	return c.HasSub && (c.Device == DeviceCtl || c.Device == DeviceGPU)
}

// hasResult reports whether the event is a call whose result is known; that of a
// library call is its return's.
func hasResult(ev *traces.Event, c *Call) bool {
	return c.Returned.Known || ev.Kind <= traces.KindIoctl && ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished|traces.FlagRestarted) == 0
}

// status matches the result of a call that has one.
func (p *pattern) status(ev *traces.Event, c *Call) bool {
	if r := &c.Returned; r.Known {
		return p.named(r.Name, uint64(r.Code)) || !r.Failed && (p.text == "ok" || p.glob && p.name("ok"))
	}
	if !c.Failed() {
		return p.text == "ok" || p.glob && p.name("ok") || p.isNumber && p.number == 0
	}
	if c.Errno != 0 && (p.name(errnoName(c.Errno)) || p.isNumber && p.number == uint64(c.Errno)) {
		return true
	}
	return c.HasStatus && c.Status != rm.OK && p.named(c.StatusName(), uint64(c.Status))
}

// named matches a name or, where the pattern is a number, that. What has no
// name matches "*" only.
func (p *pattern) named(name string, number uint64) bool {
	if name == "" {
		return p.text == "*" || p.isNumber && p.number == number
	}
	return p.isNumber && p.number == number || p.name(name)
}

func (p *pattern) name(s string) bool {
	if !p.glob {
		return strings.EqualFold(p.text, s)
	}
	return glob.MatchFold(p.text, s)
}
