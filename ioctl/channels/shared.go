package channels

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"sync"
	"time"

	"nvtrace/rm"
	"nvtrace/rm/channel"
)

// Shared is what the driver tells of a GPU in the page of class RM_USER_SHARED_DATA that libcuda maps. Memory is always
// there; the readings are, while some program has the driver keep them up to date (one that watches GPUs). Those that are not
// there, or are old, are nil.
type Shared struct {
	Memory            uint64  `json:"memory"` // of the GPU, in bytes
	MemoryUsed        uint64  `json:"memory_used"`
	SMClock           *uint32 `json:"sm_clock_mhz,omitempty"`
	MemoryClock       *uint32 `json:"memory_clock_mhz,omitempty"`
	Utilisation       *uint32 `json:"utilisation_percent,omitempty"` // of time in which a kernel ran
	MemoryUtilisation *uint32 `json:"memory_utilisation_percent,omitempty"`
	Power             *uint32 `json:"power_mw,omitempty"`
	PowerLimit        *uint32 `json:"power_limit_mw,omitempty"`
	Temperature       *uint32 `json:"temperature_c,omitempty"`
}

// SharedData returns what the driver tells of the GPU, if the process has one GPU: the pages of several look the
// same.
func SharedData(m Memory) (Shared, bool) { return new(SharedPage).Read(m) }

// SharedPage is such a page that is read again and again. Drivers of 580 keep readings up to date without time stamps: that they
// change tells that they are.
type SharedPage struct {
	before  []byte
	changed time.Time
}

// old is how old readings may be.
const old = 10 * time.Second

// Read is [SharedData].
func (p *SharedPage) Read(m Memory) (Shared, bool) {
	maps, err := m.Maps()
	if err != nil {
		return Shared{}, false
	}
	var found Shared
	n := 0
	b := make([]byte, pageSize)
	for i := range maps {
		mapping := &maps[i]
		if mapping.Path != "/dev/nvidiactl" || !mapping.Read || mapping.Write || mapping.Private || mapping.End-mapping.Start != pageSize || m.Read(mapping.Start, b) != nil {
			continue
		}
		if s, ok := channel.ParseSharedData(b); ok {
			found = Shared{Memory: s.Memory, MemoryUsed: s.Memory - s.FreeMemory}
			now := time.Now()
			if p.moved(b) {
				p.changed = now
			}
			layout, exact := sharedLayout()
			found.readings(layout, b, now, exact && now.Sub(p.changed) < old)
			n++
		}
	}
	return found, n == 1
}

// moved reports whether readings have changed since the last time.
func (p *SharedPage) moved(b []byte) bool {
	const memory = 72 // of which the page tells before them, in all releases
	moved := p.before != nil && !bytes.Equal(b[memory:], p.before[memory:])
	p.before = append(p.before[:0], b...)
	return moved
}

// sharedLayout is how the driver that runs here lays the page out; nil: it isn't known. exact: by the tables of its own release.
// Those of another one are a guess, which the time stamp of a section proves: sections grow from one to the next.
var sharedLayout = sync.OnceValues(func() (layout *rm.Struct, exact bool) {
	b, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		return nil, false
	}
	v, err := rm.ParseVersion(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, false
	}
	abi := rm.Load(v)
	return abi.Struct("NV00DE_SHARED_DATA"), abi.Exact()
})

// shift is by how much sections may stand further behind than the tables have them: with 580.159 there are 8 bytes more before
// those of power than with 580.142.
const shift = 8

// readings reads what is only kept up to date for those who ask for it.
func (s *Shared) readings(layout *rm.Struct, page []byte, now time.Time, moving bool) {
	if layout == nil || layout.Size > len(page) {
		return
	}
	for _, r := range []struct {
		to      **uint32
		section string
		paths   []string // of the number in it: the first that the release has, and that is there
	}{
		{&s.SMClock, "clkPublicDomainInfos", []string{"info[3].targetClkMHz", "info[0].targetClkMHz"}}, // RUSD_CLK_PUBLIC_DOMAIN_SM, or _GRAPHICS, which it follows
		{&s.MemoryClock, "clkPublicDomainInfos", []string{"info[1].targetClkMHz"}},
		{&s.Utilisation, "perfDevUtil", []string{"info.gpuPercentBusy"}},
		{&s.MemoryUtilisation, "perfDevUtil", []string{"info.memoryPercentBusy"}},
		{&s.Power, "instPowerUsage", []string{"info.instGpuPower"}},
		{&s.PowerLimit, "powerLimitGpu", []string{"info.enforcedmW"}},
		{&s.Temperature, "temperatures[0]", []string{"temperature", "info.gpuTemperature"}},
	} {
		at, _, ok := layout.Find(r.section + ".lastModifiedTimestamp")
		if !ok {
			continue
		}
		stamp, further := binary.LittleEndian.Uint64(page[at:]), 0
		if !fresh(stamp, now) && at+shift+8 <= len(page) && fresh(binary.LittleEndian.Uint64(page[at+shift:]), now) {
			stamp, further = binary.LittleEndian.Uint64(page[at+shift:]), shift
		}
		if !fresh(stamp, now) && (stamp != 0 || !moving) {
			continue
		}
		for _, path := range r.paths {
			at, member, ok := layout.Find(r.section + "." + path)
			if at += further; !ok || member.Elem > 4 || at+member.Elem > len(page) {
				continue
			}
			var word [4]byte
			copy(word[:], page[at:at+member.Elem])
			v := binary.LittleEndian.Uint32(word[:])
			if v == 0 && (stamp == 0 || r.section == "clkPublicDomainInfos") {
				continue // it may not be filled
			}
			if member.Type == "NvTemp" {
				v /= 1 << 8 // a fixed-point number
			}
			*r.to = &v
			break
		}
	}
}

// fresh reports whether the readings of a section are no older than some seconds: its time stamp is the GPU's clock, which the driver
// sets to the host's.
func fresh(stamp uint64, now time.Time) bool {
	const sequence = 0xff << 56 // from here on it counts, and is no time
	if stamp == 0 || stamp >= sequence {
		return false
	}
	return now.Sub(time.Unix(0, int64(stamp))).Abs() < old
}
