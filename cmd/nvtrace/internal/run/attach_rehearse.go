package run

import (
	"errors"

	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
)

// rehearse does to maps in this process's memory what every GPU context's, and the host's, will go
// through, so that maps that no GPU holds, and settings that can't be made, are found
// before the program starts.
func rehearse(plan *nvattach.Plan, settings []object.Setting, threads uint64) error {
	// With one multiprocessor maps are the smallest: what is refused here is refused
	// on every GPU.
	maps, err := plan.NewMaps(&mapmem.MapOptions{SMs: 1, Threads: threads})
	if err != nil {
		return err
	}
	const base = 1 << 32 // as good as any
	mem := &mapmem.Buffer{Base: base}
	if len(settings) > 0 {
		mem.Data = make([]byte, maps.Size()) // not touched but by settings
		if err := errors.Join(maps.Place(base), maps.Init(mem, 0, 0)); err != nil {
			return err
		}
	}
	var onHost *mapmem.Maps
	var hostMem *mapmem.HostMemory
	if len(settings) > 0 && len(plan.Host) > 0 {
		if onHost, hostMem, err = plan.NewHostMaps(nil, nil); err != nil {
			return err
		}
	}
	for _, s := range settings {
		if onHost != nil && maps.Find(s.Name) == nil {
			err = onHost.Apply(hostMem, s, nil)
		} else {
			err = maps.Apply(mem, s, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
