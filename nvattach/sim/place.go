package sim

import (
	"fmt"

	"nvtrace/nvattach/preload"
)

// place prepares the simulation in the first folder whose files programs can map
// as code, and in which there is room.
func (s *Sim) place() error {
	if err := preload.Place(preload.Folders(), s.placeIn); err != nil {
		return fmt.Errorf("no folder for its libraries (set TMPDIR): %w", err)
	}
	return nil
}

// placeIn prepares the simulation in a folder of its own in dir.
func (s *Sim) placeIn(dir string) error {
	own, err := preload.NewFolder(dir, "nvtrace-sim-")
	if err != nil {
		return err
	}
	s.own, s.dir, s.libs = own, own.Path, s.opts.LibDir
	if err := s.prepare(); err != nil {
		_ = own.Remove()
		return err
	}
	return nil
}
