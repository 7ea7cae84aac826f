package traces

import "encoding/json"

// Sampled is what looks at a process's channels from outside have come to. Times are in nanoseconds.
type Sampled struct {
	Every    int64            `json:"every"` // between looks; 0: without pause
	Wall     int64            `json:"wall"`  // from the first look to the last
	Looks    uint64           `json:"looks"`
	Rings    string           `json:"rings,omitempty"` // why no ring was read; absent: rings were
	Devices  []SampledDevice  `json:"devices"`
	Channels []SampledChannel `json:"channels"`
	Works    []SampledWork    `json:"works"` // those with most time first
	// MoreWorks is how many kinds of works were left out.
	MoreWorks int `json:"more_works,omitempty"`
}

// Why no ring of a process was read.
const (
	RingsRefused   = "refused" // by the kernel or the driver
	RingsLeft      = "left"    // alone, as asked for
	RingsOfSeveral = "several" // either, and the process has several GPUs: of which of them a channel is, is not known
)

// A SampledDevice is a GPU that a process has channels of.
type SampledDevice struct {
	Device int32 `json:"device"` // number of its node
	Busy   int64 `json:"busy"`   // in which it did at least one thing for the process
	// BusyError is twice the standard error of Busy.
	BusyError int64 `json:"busy_error"`
	// ClockMargin is by how much its clock may be off the host's, as far as looks have told; -1: not known.
	ClockMargin int64 `json:"clock_margin"`
	// MemoryUsed is how much of Memory was used at the end, by all processes, in bytes, as the driver tells in the
	// process's memory; both 0: it isn't known.
	Memory     uint64 `json:"memory,omitempty"`
	MemoryUsed uint64 `json:"memory_used,omitempty"`
	// Readings are those at the end; nil: nobody had the driver keep them up to date.
	Readings *GPUReadings `json:"readings,omitempty"`
}

// GPUReadings are what the driver tells of a GPU's clocks and power in the process's memory; nil: not told.
type GPUReadings struct {
	SMClock           *uint32 `json:"sm_clock_mhz,omitempty"`
	MemoryClock       *uint32 `json:"memory_clock_mhz,omitempty"`
	Utilisation       *uint32 `json:"utilisation_percent,omitempty"`
	MemoryUtilisation *uint32 `json:"memory_utilisation_percent,omitempty"`
	Power             *uint32 `json:"power_mw,omitempty"`
	PowerLimit        *uint32 `json:"power_limit_mw,omitempty"`
	Temperature       *uint32 `json:"temperature_c,omitempty"`
}

// A SampledChannel says what of a channel was seen.
type SampledChannel struct {
	Device  int32  `json:"device"`
	Channel int    `json:"channel"`
	Copies  bool   `json:"copies,omitempty"` // it is a copy engine's
	Done    uint64 `json:"done"`             // submissions that the channel has passed
	Seen    uint64 `json:"seen"`             // of these, those whose time was seen
	Unread  uint64 `json:"unread"`           // of these, those that were not even looked at
}

// A SampledWork adds up what one channel did of one kind.
type SampledWork struct {
	Device  int32  `json:"device"`
	Channel int    `json:"channel"`
	Name    string `json:"name"`            // of a kernel, mangled; "copy"
	Named   string `json:"named,omitempty"` // whence the name is, as [WorkDetail] has it
	Kernel  bool   `json:"kernel,omitempty"`
	// Looks is how many looks it was running at, Seen how many were seen from begin to end, Missed how many
	// were there whose times were not seen.
	Looks  uint64 `json:"looks,omitempty"`
	Seen   uint64 `json:"seen,omitempty"`
	Missed uint64 `json:"missed,omitempty"`
	// Time is of what was seen: the sum of durations, or of the times that looks stand for. Share is the
	// part of Wall with what was missed, which counts as long as what was seen; Error is twice its standard error.
	Time  int64   `json:"time"`
	Max   int64   `json:"max,omitempty"` // the longest of those seen
	Share float64 `json:"share"`
	Error float64 `json:"error"`
}

// SetSampled makes e an event of KindSampled.
func (e *Event) SetSampled(s *Sampled) {
	b, err := json.Marshal(s)
	if err != nil {
		panic("BUG: what was sampled as JSON: " + err.Error())
	}
	e.Kind, e.Data = KindSampled, string(b)
}

// Sampled returns what an event of KindSampled says, nil where that makes no sense.
func (e *Event) Sampled() *Sampled {
	var s Sampled
	if json.Unmarshal([]byte(e.Data), &s) != nil {
		return nil
	}
	return &s
}
