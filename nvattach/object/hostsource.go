package object

import (
	"errors"
	"fmt"
	"strings"

	"nvtrace/ptx/bpf"
)

// A HostSource is a kind of place on the host that another package has: an event of its own. Objects that are
// opened with it may have programs in sections that begin with its name; the package runs them
// when that happens, by [nvtrace/nvattach/hostrun.Runner.Run], whose HostCall has the context's fields.
type HostSource struct {
	// Section is the first part of the sections' names; what follows behind a slash is
	// the program's configuration, [HostPoint].Config.
	Section string
	// Check refuses configurations; nil: it takes all.
	Check func(config string) error
	// Fields are the names of what r1 points to, numbers of 8 bytes.
	Fields []string
	// Helpers are those that programs have beside the common ones.
	Helpers map[int32]*bpf.Helper
	// Override: a program may answer, by bpf_override_return; HostCall.Override has the answer then.
	Override bool
}

// check refuses a source that can't be.
func (s *HostSource) check() error {
	switch {
	case s.Section == "" || strings.ContainsAny(s.Section, "/ "):
		return fmt.Errorf("a source of events called %q", s.Section)
	case HostKinds[sectionKind(s.Section)] != nil || s.Section == "tracepoint" || s.Section == "tp":
		return fmt.Errorf("a source of events called %q, which is a kind of section already", s.Section)
	}
	return nil
}

// kind describes the source's points.
func (s *HostSource) kind() *HostSection {
	c := words(s.Fields...)
	return &HostSection{Kind: HostEvent, Context: &c, Override: s.Override, Helpers: s.Helpers}
}

// parse reads a section's name; HostNone: it is not this source's.
func (s *HostSource) parse(section string) (p HostPoint, err error) {
	name, config, _ := strings.Cut(section, "/")
	if name != s.Section {
		return p, nil
	}
	if s.Check != nil {
		err = s.Check(config)
	}
	return HostPoint{Kind: HostEvent, Source: s, Config: config}, err
}

// parseHost reads a section's name, of one of the sources or of the package's own kinds.
func parseHost(section string, sources []*HostSource) (HostPoint, error) {
	for _, s := range sources {
		if p, err := s.parse(section); p.Kind != HostNone {
			return p, err
		}
	}
	return ParseHostPoint(section)
}

// checkSources refuses sources that can't be, or not together.
func checkSources(sources []*HostSource) error {
	seen := map[string]bool{}
	var errs []error
	for _, s := range sources {
		if errs = append(errs, s.check()); seen[s.Section] {
			errs = append(errs, fmt.Errorf("two sources of events called %q", s.Section))
		}
		seen[s.Section] = true
	}
	return errors.Join(errs...)
}
