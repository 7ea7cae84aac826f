package capture

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"nvtrace/nvattach/owned"
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
