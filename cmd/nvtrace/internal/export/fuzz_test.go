package export

import (
	"slices"
	"testing"

	"nvtrace/traces"
)

// spoil changes a recording's events as data says: six bytes a change.
func spoil(events []*traces.Event, data []byte) []*traces.Event {
	out := slices.Clone(events)
	for ; len(data) >= 6; data = data[6:] {
		i := (int(data[0]) | int(data[1])<<8) % len(out)
		ev := out[i].Clone()
		out[i] = ev
		v := int64(int8(data[3]))<<(data[4]&63) + int64(data[5])
		switch data[2] % 16 {
		case 0:
			ev.PID = int32(v)
		case 1:
			ev.TID = int32(v)
		case 2:
			ev.Time = v
		case 3:
			ev.Dur = v
		case 4:
			ev.Flags = traces.Flags(v)
		case 5:
			ev.Ret = v
		case 6:
			ev.Kind = traces.Kind(data[3] % 20)
		case 7:
			ev.Args[data[5]%6] = uint64(v)
		case 8:
			ev.Child = int32(v)
		case 9:
			ev.Name, ev.Path, ev.Text = string(data), string(data), string(data)
			ev.Argv = []string{string(data[:3]), string(data[3:])}
		case 10:
			ev.Dev = string(data[3:])
		case 11:
			ev.File, ev.FD = uint32(data[3]), int32(int8(data[4]))
		case 12:
			for j := range ev.Mem {
				if b := ev.Mem[j].In; len(b) > 0 {
					b[int(data[3])%len(b)] ^= data[4]
				}
				if b := ev.Mem[j].Out; len(b) > 0 {
					b[int(data[3])%len(b)] ^= data[5]
				}
			}
		case 13:
			ev.Mem = ev.Mem[:min(len(ev.Mem), int(data[3]))]
		case 14: // again
			out = slices.Insert(out, int(data[3])%len(out), ev.Clone())
		case 15: // not at all
			if len(out) > 1 {
				out = slices.Delete(out, i, i+1)
			}
		}
	}
	return out
}

// FuzzEvents exports events of any content: both views must be well formed, and
// agree with the summary in their totals.
func FuzzEvents(f *testing.F) {
	h, events := recording(f, "../../../../traces/corpus/nvidia-smi.nvt")
	_, small := recording(f, "testdata/small.jsonl")
	last := events[len(events)-1].Time
	for _, ev := range small {
		ev.Time += last
		events = append(events, ev)
	}
	f.Add([]byte{})
	for op := range byte(16) {
		f.Add([]byte{10, 0, op, 0x80, 63, 7, 20, 0, op, 0x7f, 40, 0, 110, 0, op, 0xff, 3, 1})
		f.Add([]byte{30, 0, op, 3, 0, 0, 31, 0, 3, 0x7f, 62, 0, 40, 0, 2, 0x7f, 56, 0, 41, 0, 14, 9, 0, 0})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 600 {
			return
		}
		spoiled := spoil(events, data)
		export(t, h, slices.Values(spoiled))
		exportTables(t, h, slices.Values(spoiled))
		page(t, h, slices.Values(spoiled))
	})
}
