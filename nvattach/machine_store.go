package nvattach

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// Machine code with programs is kept for later runs: analysing a library's kernels takes
// seconds. What differs from run to run is where the driver puts the memory of maps, so
// that the places are noted at which the upper halves of its addresses stand.

// storedCode is what is kept beside a cubin.
type storedCode struct {
	Kernels  []KernelReport
	Unprobed []Unprobed
	Sites    []Site
	Halves   []int      // offsets in the cubin
	Keys     [][][]byte `json:",omitempty"` // those that have places since, by map, see Plan.placedMaps
}

// storeParts are what machine code with programs depends on; nil if it can't be kept.
func (r *rewriting) storeParts(data []byte, names []string, arch fatbin.Arch) []string {
	if r.o.Store == nil || r.o.Places == nil || r.o.Twins == TwinsAll || r.o.Twins == TwinsAside {
		return nil
	}
	sum := sha256.Sum256(data)
	parts := []string{"cubin", string(sum[:]), arch.String()}
	numbered := false
	for _, q := range r.p.Programs {
		var wanted strings.Builder
		for _, name := range names {
			if r.p.kernelWanted(q, name, false) {
				wanted.WriteString(name + "\n")
			}
		}
		if wanted.Len() == 0 {
			continue
		}
		parts = append(parts, q.Name, q.Object.Name, fmt.Sprintf("%+v", q.Point), wanted.String(), strconv.FormatBool(q.Object.Script), fmt.Sprint(q.OwnWords(), sumsOf(q, r.maps)))
		for _, f := range bodyForms(q, r.maps) {
			b, err := r.p.bodyText(q, r.maps, arch, nil, "", f)
			if err != nil {
				parts = append(parts, err.Error())
				continue
			}
			text, _, ok := r.o.Places(b.Text)
			if !ok {
				return nil
			}
			parts = append(parts, text)
			for _, p := range b.Params {
				numbered = numbered || p.What == proof.BodySite
			}
		}
		for i := range q.Report.Slots {
			numbered = numbered || q.Plain != nil && q.Numbers(&q.Report.Slots[i])
			parts = append(parts, fmt.Sprint(q.Plain != nil, q.Report.Slots[i]))
		}
		if q.AsksForArguments() || q.Point.Kind == object.KindCapture {
			parts = append(parts, fmt.Sprint(q.Insns)) // its text depends on the kernel
		}
	}
	for _, d := range r.p.placedMaps() {
		parts = append(parts, fmt.Sprint(d.Name, r.p.keys.taken(d)))
	}
	if numbered {
		parts = append(parts, strconv.Itoa(len(r.p.sites)))
	}
	return parts
}

// stored returns what was kept, for the memory of this run.
func (r *rewriting) stored(parts []string) ([]byte, bool) {
	if parts == nil {
		return nil, false
	}
	info, out, ok := r.o.Store.Kept(parts)
	if !ok {
		return nil, false
	}
	var s storedCode
	if err := json.Unmarshal([]byte(info), &s); err != nil {
		return nil, false
	}
	if slices.ContainsFunc(s.Halves, func(at int) bool { return at < 0 || at > len(out)-2 }) {
		return nil, false
	}
	placed := r.p.placedMaps()
	if len(s.Keys) != 0 && len(s.Keys) != len(placed) {
		return nil, false
	}
	for i, keys := range s.Keys {
		first, ok := r.p.keys.take(placed[i], len(keys))
		if !ok {
			return nil, false
		}
		for k, key := range keys {
			if key != nil {
				r.p.keys.set(placed[i], first+k, [][]byte{key})
			}
		}
	}
	for _, at := range s.Halves {
		binary.LittleEndian.PutUint16(out[at:], r.o.High)
	}
	r.out.Kernels, r.out.Unprobed = s.Kernels, append(r.out.Unprobed, s.Unprobed...)
	r.p.sites = append(r.p.sites, s.Sites...)
	return out, true
}

// store keeps a cubin. halves are offsets in the code of kernels.
func (r *rewriting) store(parts []string, s *storedCode, out []byte, halves map[string][]int) {
	if parts == nil {
		return
	}
	c, err := fatbin.ParseCubin(out)
	if err != nil {
		return
	}
	for i := range c.Kernels {
		k := &c.Kernels[i]
		for _, at := range halves[k.Name] {
			s.Halves = append(s.Halves, int(c.Sections[k.Section].Offset+k.Offset)+at)
		}
	}
	info, err := json.Marshal(s)
	if err != nil {
		return
	}
	r.o.Store.Keep(parts, string(info), out)
}
