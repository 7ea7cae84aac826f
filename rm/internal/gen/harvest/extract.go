package harvest

import (
	"errors"
	"fmt"
	"io/fs"

	"nvtrace/internal/gen/cdecl"
	"nvtrace/rm/internal/gen/facts"
)

// Extract harvests a source tree. Anything that does not read is an error, and
// then there are no facts.
func Extract(fsys fs.FS) (*facts.Facts, Counts, error) {
	version, err := Version(fsys)
	if err != nil {
		return nil, Counts{}, err
	}
	h := &harvest{
		fsys: fsys, units: map[string]*unit{}, names: map[*cdecl.Type]string{},
		f: &facts.Facts{
			Version: version, Status: map[string]uint64{}, Flags: map[string]uint64{}, Category: map[string]map[string]string{},
			Embedded: map[string][]facts.Embedded{}, Scalars: map[string]facts.Scalar{}, Enums: map[string]map[string]int64{},
			Types: map[string]facts.Type{}, Alias: map[string]string{}, Ranges: map[string][2]int64{}, Consts: map[string]uint64{},
		},
	}
	var n Counts
	for _, u := range unitsOf(fsys) {
		h.load(&u)
		n.Headers += len(u.pre.Files)
		n.Records += len(u.par.Records)
	}
	h.macros("rm")
	h.macros("uvm")
	h.escapes()
	h.uvm()
	h.kms()
	h.nvswitch()
	h.nvlink()
	h.drm()
	n.ExportRows, n.Exported = h.controls()
	n.ClassRows = h.classes()
	h.status()
	h.pointers()
	h.roles()
	h.counts()
	h.directions()
	h.domains()
	h.complete()
	if len(h.errs) > 0 {
		return nil, n, fmt.Errorf("driver %s: %w", version, errors.Join(h.errs...))
	}
	return h.f, n, nil
}
