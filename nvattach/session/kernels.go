package session

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"nvtrace/fatbin"
)

// What is listed of many kernels, so that it can be read.
const (
	maxProbed   = 8 // kernels with probes
	maxReasons  = 4 // why others have none
	maxExamples = 3 // kernels of each
	maxOrigins  = 8 // files that kernels came from
	maxName     = 160
)

// checked is what came of verifying a kernel's launches; nil if that was not asked for.
func (s *Session) checked(k *Kernel) *Verified {
	if !s.Verify() || k.Images == 0 || k.Func {
		return nil
	}
	return s.verified(k.Name)
}

// kernelLines says which kernels were probed and why others were not. Libraries bring
// thousands of kernels of which a program launches some: those that it did not are
// counted, and the others grouped by what is said of them.
func (s *Session) kernelLines(all []Kernel) []string {
	var lines []string
	if s.opts.Verbose {
		for i := range all {
			k := &all[i]
			if k.Images > 0 {
				lines = append(lines, s.probedLines(k, fatbin.Demangle(k.Name))...)
			}
			if k.Reason != "" {
				lines = append(lines, fmt.Sprintf("NOT probed %s: %s", fatbin.Demangle(k.Name), k.Reason))
			}
		}
		return lines
	}
	var probed, first []*Kernel // first: there is something to say of them
	var reasons []string
	without := make(map[string][]*Kernel) // by the reason
	idle, idleProbed := 0, 0
	for i := range all {
		k := &all[i]
		if !k.Ran {
			idle++
			if k.Images > 0 {
				idleProbed++
			}
			continue
		}
		if v := s.checked(k); k.Unprobed > 0 || v != nil && v.Worst != nil {
			first = append(first, k)
		} else if k.Images > 0 {
			probed = append(probed, k)
		}
		if k.Reason != "" {
			if without[k.Reason] == nil {
				reasons = append(reasons, k.Reason)
			}
			without[k.Reason] = append(without[k.Reason], k)
		}
	}
	probed = slices.Concat(first, probed)
	for _, k := range probed[:min(len(probed), maxProbed)] {
		lines = append(lines, s.probedLines(k, shortName(k.Name))...)
	}
	if n := len(probed) - maxProbed; n > 0 {
		lines = append(lines, fmt.Sprintf("probed %s (-v lists them)", plural(n, "more kernel")))
	}
	lines = append(lines, unprobedLines(reasons, without)...)
	// With none of those that the host launched, but others, a sum would read as if nothing had been counted.
	if some := len(probed) > 0 || idleProbed == 0; some && len(reasons) > 0 || len(probed) > maxProbed {
		lines = append(append(lines, s.total(all)), s.origins(all)...)
	}
	switch {
	case idle == 0:
	case idleProbed == 0:
		lines = append(lines, fmt.Sprintf("not launched by the host: %s, none of them with probes", plural(idle, "kernel")))
	case idleProbed == idle:
		lines = append(lines, fmt.Sprintf("not launched by the host: %s, with probes", plural(idle, "kernel")))
	default:
		lines = append(lines, fmt.Sprintf("not launched by the host: %s, %d of them with probes", plural(idle, "kernel"), idleProbed))
	}
	return lines
}

// total says how many of the kernels that were launched had programs, and how many of
// their launches, as far as these were counted.
func (s *Session) total(all []Kernel) string {
	var o origin
	uncounted := 0
	for i := range all {
		k := &all[i]
		if !k.Ran {
			continue
		}
		o.count(k)
		if k.Launches == 0 {
			uncounted++
		}
	}
	if !s.seesLaunches() {
		return fmt.Sprintf("probed %d of %d loaded kernels", o.probed, o.kernels)
	}
	text := fmt.Sprintf("probed %d of %d launched kernels", o.probed, o.kernels)
	if o.launches > 0 {
		text += ", " + Share(o.with, o.launches)
		if uncounted > 0 {
			text += fmt.Sprintf("; those of %s, in graphs, were not counted", plural(uncounted, "kernel"))
		}
	}
	return text
}

// An origin counts kernels that were launched, of a library or of all.
type origin struct {
	name           string
	kernels        int
	probed         int
	launches, with uint64
}

// count counts a kernel that was launched.
func (o *origin) count(k *Kernel) {
	o.kernels++
	o.launches += k.Launches
	if k.probed() {
		o.probed++
		o.with += k.Launches - min(k.Launches, uint64(k.Unprobed))
	}
}

func (o *origin) add(p *origin) {
	o.kernels, o.probed, o.launches, o.with = o.kernels+p.kernels, o.probed+p.probed, o.launches+p.launches, o.with+p.with
}

func (o *origin) String() string {
	text := fmt.Sprintf("  %s: %d of %s", o.name, o.probed, plural(o.kernels, "kernel"))
	if o.launches > 0 {
		text += ", " + Share(o.with, o.launches)
	}
	return text
}

// origins is total by the files that kernels came from, what was launched most first;
// nothing where all came from one.
func (s *Session) origins(all []Kernel) (lines []string) {
	if !s.seesLaunches() {
		return nil
	}
	of := make(map[string]*origin)
	for i := range all {
		k := &all[i]
		if !k.Ran {
			continue
		}
		name := cmp.Or(k.From, "of unknown files")
		o := of[name]
		if o == nil {
			o = &origin{name: name}
			of[name] = o
		}
		o.count(k)
	}
	if len(of) < 2 {
		return nil
	}
	list := slices.SortedFunc(maps.Values(of), func(a, b *origin) int {
		return cmp.Or(cmp.Compare(b.launches, a.launches), cmp.Compare(b.kernels, a.kernels), cmp.Compare(a.name, b.name))
	})
	rest := origin{name: plural(max(len(list)-maxOrigins, 0), "more file")}
	for i, o := range list {
		if i < maxOrigins {
			lines = append(lines, o.String())
		} else {
			rest.add(o)
		}
	}
	if rest.kernels > 0 {
		lines = append(lines, rest.String())
	}
	return lines
}

// Share says which part of some launches had programs: "99.8% of 1,475 launches". Only all
// of them are 100%, and only none 0%.
func Share(with, launches uint64) string {
	permille := uint64(math.Round(float64(with) / float64(launches) * 1000))
	if with < launches {
		permille = min(permille, 999)
	}
	if with > 0 {
		permille = max(permille, 1)
	}
	percent := fmt.Sprintf("%d.%d%%", permille/10, permille%10)
	if permille%10 == 0 {
		percent = fmt.Sprintf("%d%%", permille/10)
	}
	return fmt.Sprintf("%s of %s", percent, counted(launches, "launch"))
}

// counted is plural with commas.
func counted(n uint64, what string) string {
	s := plural(int(min(n, 2)), what)
	return thousands(n) + s[1:]
}

// probedLines says what came of a kernel with probes.
func (s *Session) probedLines(k *Kernel, name string) []string {
	where := ""
	if k.Machine {
		where = ", machine code"
	}
	lines := []string{fmt.Sprintf("probed %s (%s%s)", name, plural(k.Sites, "site"), where)}
	for _, n := range k.Notes {
		lines = append(lines, "  "+n)
	}
	if k.Unprobed > 0 {
		lines = append(lines, fmt.Sprintf("  %s ran without probes: %s", plural(k.Unprobed, "launch"), k.UnprobedWhy))
	}
	if v := s.checked(k); v != nil {
		for _, line := range v.text(k) {
			lines = append(lines, "  "+line)
		}
	}
	return lines
}

// unprobedLines says of kernels without probes why, the most frequent reason first.
func unprobedLines(reasons []string, without map[string][]*Kernel) []string {
	slices.SortStableFunc(reasons, func(a, b string) int { return len(without[b]) - len(without[a]) })
	var lines []string
	more := 0
	for i, why := range reasons {
		list := without[why]
		switch {
		case i >= maxReasons:
			more += len(list)
		case len(list) == 1:
			lines = append(lines, fmt.Sprintf("NOT probed %s: %s", shortName(list[0].Name), why))
		default:
			var names []string
			for _, k := range list[:min(len(list), maxExamples)] {
				names = append(names, shortName(k.Name))
			}
			if len(list) > maxExamples {
				names = append(names, "…")
			}
			lines = append(lines, fmt.Sprintf("NOT probed %s: %s: %s", plural(len(list), "kernel"), why, strings.Join(names, ", ")))
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("NOT probed %s, for %s (-v lists them)", plural(more, "more kernel"), plural(len(reasons)-maxReasons, "other reason")))
	}
	return lines
}

// shortName is a kernel's name as it is written, or the beginning of a long one.
func shortName(mangled string) string {
	name := fatbin.Demangle(mangled)
	if r := []rune(name); len(r) > maxName {
		return string(r[:maxName-1]) + "…"
	}
	return name
}
