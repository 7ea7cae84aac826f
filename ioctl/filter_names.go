package ioctl

import (
	"fmt"
	"iter"
	"slices"

	"nvtrace/ioctl/nearest"
	"nvtrace/rm"
)

// known reports whether a pattern matches a name that some driver version has.
func (p *pattern) known(key filterKey) bool {
	for name := range namesOf(key) {
		if p.name(name) {
			return true
		}
	}
	return false
}

// namesOf yields the names that a value of the key can match, those of the newest
// driver first. Names that several versions have come several times.
func namesOf(key filterKey) iter.Seq[string] {
	return func(yield func(string) bool) {
		if key == keyIoctl {
			for _, req := range genericRequests {
				if !yield(genericName(req)) {
					return
				}
			}
		}
		if !namesIn(rm.Newest(), key, yield) {
			return
		}
		if key == keyControl {
			for c := range rm.AllControls() {
				if !yield(c.Name) {
					return
				}
			}
			return
		}
		for _, v := range slices.Backward(rm.Versions()) {
			if !namesIn(rm.Load(v), key, yield) {
				return
			}
		}
	}
}

// namesIn yields the names that a version has; false means that no more are wanted.
func namesIn(a *rm.ABI, key filterKey, yield func(string) bool) bool {
	switch key {
	case keyControl:
		for c := range a.Controls() {
			if !yield(c.Name) {
				return false
			}
		}
	case keyClass:
		for c := range a.Classes() {
			if !yield(c.Name) {
				return false
			}
		}
	default:
		for e := range a.Escapes() {
			if !yield(e.Name) {
				return false
			}
		}
		for _, requests := range []iter.Seq[*rm.Request]{a.UVMs(), a.Modesets(), a.NVSwitches(), a.NVSwitchCtls(), a.NVLinks(), a.DRMs()} {
			for r := range requests {
				if !yield(r.Name) {
					return false
				}
			}
		}
	}
	return true
}

// unknownName is the error about a name that no driver version has.
func unknownName(key filterKey, word string) error {
	what := map[filterKey]string{keyIoctl: "an ioctl", keyControl: "a control command", keyClass: "a class"}[key]
	return fmt.Errorf("no known driver has %s that %q matches%s", what, word, Suggest(word, namesOf(key)))
}

// Suggest returns "; did you mean A or B?" with the names that are most like a
// word, "" where there are none.
func Suggest(word string, names iter.Seq[string]) string {
	return nearest.Question(nearest.Names(word, names, 3))
}

// Names yields the names that values of a filter's key can match, the key being "ioctl",
// "control" or "class": those of the newest driver first, some several times.
func Names(key string) iter.Seq[string] {
	switch key {
	case "control":
		return namesOf(keyControl)
	case "class":
		return namesOf(keyClass)
	}
	return namesOf(keyIoctl)
}
