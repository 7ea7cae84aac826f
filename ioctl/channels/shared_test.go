package channels

import (
	"encoding/binary"
	"encoding/json"
	"testing"
	"time"

	"nvtrace/rm"
)

// TestReadings wants the readings that are up to date, by the layout of each release that has the page, and no other.
func TestReadings(t *testing.T) {
	now := time.Unix(1.8e9, 0)
	n := 0
	for _, v := range rm.Versions() {
		layout := rm.Load(v).Struct("NV00DE_SHARED_DATA")
		if layout == nil {
			continue
		}
		page := make([]byte, pageSize)
		put := func(path string, value uint64) bool {
			at, m, ok := layout.Find(path)
			if ok {
				var word [8]byte
				binary.LittleEndian.PutUint64(word[:], value)
				copy(page[at:at+m.Elem], word[:])
			}
			return ok
		}
		var s Shared
		s.readings(layout, page, now, false)
		if s != (Shared{}) {
			t.Fatalf("%v: an empty page has %+v", v, s)
		}
		put("perfDevUtil.lastModifiedTimestamp", uint64(now.Add(-time.Second).UnixNano()))
		has := put("perfDevUtil.info.gpuPercentBusy", 97)
		put("clkPublicDomainInfos.lastModifiedTimestamp", uint64(now.Add(-time.Minute).UnixNano())) // old
		put("clkPublicDomainInfos.info[3].targetClkMHz", 1980)
		put("temperatures[0].lastModifiedTimestamp", uint64(now.UnixNano()))
		warm := put("temperatures[0].temperature", 41<<8|128)
		put("instPowerUsage.lastModifiedTimestamp", ^uint64(0)) // being written
		s.readings(layout, page, now, false)
		if (s.Utilisation != nil) != has || has && *s.Utilisation != 97 || s.SMClock != nil || s.Power != nil || warm && (s.Temperature == nil || *s.Temperature != 41) {
			b, err := json.Marshal(s)
			t.Errorf("%v: %s, %v", v, b, err)
		}
		if has && warm {
			n++
		}
	}
	if n == 0 {
		t.Error("no release has the page")
	}
}

// TestReadingsWithoutStamps wants readings without time stamps believed while they change.
func TestReadingsWithoutStamps(t *testing.T) {
	v, err := rm.ParseVersion("580.142")
	if err != nil {
		t.Fatal(err)
	}
	layout := rm.Load(v).Struct("NV00DE_SHARED_DATA")
	page := make([]byte, pageSize)
	at, _, ok := layout.Find("perfDevUtil.info.gpuPercentBusy")
	if !ok {
		t.Fatal("no utilisation")
	}
	var p SharedPage
	var s Shared
	page[at] = 97
	if p.moved(page) {
		t.Error("the first page has changed")
	}
	s.readings(layout, page, time.Now(), false)
	if s.Utilisation != nil {
		t.Error("believed without a sign of life")
	}
	page[at] = 98
	if !p.moved(page) || p.moved(page) {
		t.Error("changes are not noticed")
	}
	s.readings(layout, page, time.Now(), true)
	if s.Utilisation == nil || *s.Utilisation != 98 || s.Power != nil {
		t.Errorf("%+v", s)
	}
}

// TestReadingsOfH200 wants what nvidia-smi said beside a page of driver 580.159.04 on an H200, which the tables lack: 226.77 W of 700,
// 1980 and 3201 MHz, 31 and 10 %, 44 degrees.
func TestReadingsOfH200(t *testing.T) {
	page := make([]byte, pageSize)
	for at, v := range map[int]uint32{
		0x48: 4080389456, 0x4c: 418132366, 0x50: 1980, 0x54: 3201, 0x58: 1545,
		0x7b8: 4080725424, 0x7bc: 418132366, 0x7c0: 31, 0x7c4: 10, 0x7cc: 100000,
		0x8e8: 4080483888, 0x8ec: 418132366, 0x8f0: 700000, 0x8f4: 700000, 0x8f8: 4080783600, 0x8fc: 418132366, 0x900: 11240,
		0x908: 4080785072, 0x90c: 418132366, 0x910: 11118, 0x938: 4080786544, 0x93c: 418132366, 0x940: 11816,
		0x978: 4080540816, 0x97c: 418132366, 0x980: 225357, 0x988: 41444, 0x98c: 70,
		0x990: 4080539024, 0x994: 418132366, 0x998: 226770, 0x9a8: 4080656272, 0x9ac: 418132366, 0x9b0: 248842,
	} {
		binary.LittleEndian.PutUint32(page[at:], v)
	}
	v, err := rm.ParseVersion("580.142")
	if err != nil {
		t.Fatal(err)
	}
	var s Shared
	s.readings(rm.Load(v).Struct("NV00DE_SHARED_DATA"), page, time.Unix(0, 418132366<<32|4080540816), false)
	for _, r := range []struct {
		name string
		got  *uint32
		want uint32
	}{
		{"power", s.Power, 226770},
		{"its limit", s.PowerLimit, 700000},
		{"the clock", s.SMClock, 1980},
		{"the memory's clock", s.MemoryClock, 3201},
		{"utilisation", s.Utilisation, 31},
		{"the memory's utilisation", s.MemoryUtilisation, 10},
		{"the temperature", s.Temperature, 43},
	} {
		if r.got == nil || *r.got != r.want {
			t.Errorf("%s: %v, want %d", r.name, r.got, r.want)
		}
	}
}
