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
