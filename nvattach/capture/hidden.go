package capture

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"nvtrace/nvattach/owned"
	"nvtrace/ptrace"
)

// slotID names a function that a hidden table points to.
type slotID struct {
	table string
	index int
}

// String returns "CUDART_INTERFACE[6]".
func (s slotID) String() string { return fmt.Sprintf("%s[%d]", s.table, s.index) }

// maxSlots bounds what is believed of a table's size.
const maxSlots = 1 << 10

// tableGiven is called when cuGetExportTable returns. A slot can't be had but
// from here, so that its breakpoint is there before anyone can call it.
func (c *Capture) tableGiven(t *ptrace.Task, k *call, result int32) {
	if result != 0 {
		return
	}
	known, ok := c.tables[k.id]
	if ok && len(known.slots) == 0 {
		return
	}
	name := known.name
	if !ok {
		name = k.id.String()
		c.note(t, "process %d asked the driver for the hidden table %s, which is not known: its slots are watched", t.PID, name)
	}
	at, err := readWord(t, k.arg(t, k.h.fn.out))
	var list []uint64
	if err == nil {
		list, err = c.readSlots(t, at)
	}
	if err != nil {
		c.gap(t, "the hidden table %s of process %d can't be read: %v", name, t.PID, err)
		return
	}
	if !ok {
		c.watchSlots(t, c.process(t), list, name, k.h.lib)
		return
	}
	for _, i := range slices.Sorted(maps.Keys(known.slots)) {
		if i >= len(list) || list[i] == 0 {
			continue // an older driver
		}
		addr, id := list[i], slotID{known.name, i}
		c.learn(t, addr, id, k.h.lib)
		c.hook(t, addr, known.slots[i], hook{names: []string{id.String()}, lib: k.h.lib, slot: id})
	}
}

// learn remembers where in the driver's file a slot points to.
func (c *Capture) learn(t *ptrace.Task, addr uint64, id slotID, lib string) {
	p := c.process(t)
	for i := range p.spaces {
		s := &p.spaces[i]
		if addr < s.start || addr >= s.end || s.obj.buildID == "" {
			continue
		}
		var code [slotCode]byte
		if n, _ := t.ReadText(addr, code[:]); n < len(code) {
			return
		}
		now := slotPlace{Offset: addr - s.start + s.off, Code: hex.EncodeToString(code[:])}
		old, had := c.slots.get(s.obj.buildID, id)
		if had && old.Offset == now.Offset {
			return // its code was compared when the file was mapped; since then it may have been hooked
		}
		if had && old != now {
			c.note(t, "slot %s of %s is at +%#x of the file, not at +%#x as an earlier run found", id, lib, now.Offset, old.Offset)
		}
		if !had || old != now {
			if err := c.slots.put(s.obj.buildID, id, now); err != nil {
				c.log.Debug("cache of hidden loaders", "err", err)
			}
		}
		return
	}
}

// hookCached sets the breakpoints of the hidden loaders that an earlier run found
// in the same build of the driver.
func (c *Capture) hookCached(t *ptrace.Task, p *process, s *span) {
	if s.obj.buildID == "" {
		return
	}
	for _, known := range c.tables {
		for i, fn := range known.slots {
			id := slotID{known.name, i}
			at, ok := c.slots.get(s.obj.buildID, id)
			if !ok || at.Offset < s.off || at.Offset-s.off >= s.end-s.start {
				continue
			}
			addr := s.start + (at.Offset - s.off)
			var code [slotCode]byte
			// The code must be the same: a breakpoint within an instruction would break it.
			if n, _ := t.ReadText(addr, code[:]); n < len(code) || hex.EncodeToString(code[:]) != at.Code {
				continue
			}
			c.hook(t, addr, fn, hook{names: []string{id.String()}, lib: s.obj.path, slot: id})
		}
	}
}

// slotCode is how many bytes of a slot's code are compared.
const slotCode = 16

// slotPlace is where a slot's function is.
type slotPlace struct {
	Offset uint64 `json:"offset"` // in the driver's file
	Code   string `json:"code"`   // the first bytes there
}

// slotCache remembers places by build id and slot. What can't be read or written
// is not remembered.
type slotCache struct {
	file   string
	loaded bool
	data   map[string]map[string]slotPlace
}

// DefaultCache returns the file for [Options.Cache] below the user's cache
// folder, "" if there is none.
func DefaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "nvtrace", "slots.json")
}

func newSlotCache(file string) *slotCache {
	return &slotCache{file: file, data: make(map[string]map[string]slotPlace)}
}

// maxCacheFile bounds what is read.
const maxCacheFile = 4 << 20

func (s *slotCache) get(buildID string, id slotID) (slotPlace, bool) {
	s.load()
	at, ok := s.data[buildID][id.String()]
	return at, ok
}

func (s *slotCache) load() {
	if s.loaded || s.file == "" {
		return
	}
	s.loaded = true
	dir, err := owned.Open(filepath.Dir(s.file)) // a home may be another user's, as under sudo
	if err != nil {
		return
	}
	defer dir.Close()
	b, err := owned.ReadFile(dir, filepath.Base(s.file), maxCacheFile)
	if err != nil {
		return
	}
	var data map[string]map[string]slotPlace
	if json.Unmarshal(b, &data) == nil && data != nil {
		s.data = data
	}
}

// put remembers a place, and keeps what other runs have written meanwhile.
func (s *slotCache) put(buildID string, id slotID, at slotPlace) error {
	s.loaded = false
	s.load()
	if s.data[buildID] == nil {
		s.data[buildID] = make(map[string]slotPlace)
	}
	s.data[buildID][id.String()] = at
	if s.file == "" {
		return nil
	}
	b, err := json.MarshalIndent(s.data, "", "\t")
	if err != nil {
		return err
	}
	in, name := filepath.Split(filepath.Dir(s.file))
	if err := os.MkdirAll(in, 0o700); err != nil {
		return err
	}
	dir, err := owned.Make(in, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	tmp := tmpPrefix + rand.Text()
	err = owned.WriteFile(dir, tmp, append(b, '\n'))
	if err == nil {
		err = dir.Rename(tmp, filepath.Base(s.file))
	}
	if err != nil {
		_ = dir.Remove(tmp)
	}
	return err
}
