package nvattach

import (
	"fmt"
	"strings"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
)

// RunProgram returns the program of that name of a section kprobe/__directly_run.
func (p *Plan) RunProgram(name string) (*proof.Program, error) {
	var have []string
	for _, q := range p.Programs {
		if q.Point.Kind != object.KindRun {
			continue
		}
		if q.Name == name {
			return q, nil
		}
		have = append(have, q.Name)
	}
	return nil, fmt.Errorf("no program of that name is in a section kprobe/__directly_run; there are: %s", strings.Join(have, ", "))
}

// RunText is runModule by the program's name, for a GPU of the architecture sm_N.
func (p *Plan) RunText(name string, maps *mapmem.Maps, sm uint32) (text, kernel string, err error) {
	q, err := p.RunProgram(name)
	if err != nil {
		return "", "", err
	}
	return p.runModule(q, maps, ptx.Version{Major: 8}, ptx.Target{SM: uint16(min(sm, 90))}) // the highest of PTX 8.0
}
