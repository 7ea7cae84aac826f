package ioctl

import "nvtrace/traces"

// Clock says how a line shows its time.
type Clock uint8

// The ways to show time.
const (
	ClockRelative Clock = iota // seconds since the recording began
	ClockDelta                 // seconds since the previous printed line
	ClockWall                  // time of day
	ClockNone
)

// Namer gives an object a name for printing: it appends it to dst, or returns
// dst as it was where it knows none. at is the time of the event.
type Namer func(dst []byte, client, handle uint32) []byte

// LineOptions say how lines look. The zero value, and nil, are good defaults.
type LineOptions struct {
	Clock    Clock
	Start    int64 // ClockWall: the header's Start, ns since the Unix epoch
	Duration bool  // append the call's duration, <0.000021>
	Width    int   // longest line in characters, cut with "…"; 0 no limit
	Elems    int   // how many elements of an array, or characters of a string, are shown; 0 means 32, negative all
	Zeros    bool  // show members that are zero too
	Hex      bool  // follow the line with a dump of the call's memory
	Color    bool  // mark names, errors and times with ANSI sequences
	NoPID    bool  // leave out the process and thread
	Name     Namer // nil prints handles in hexadecimal
}

// AppendLine decodes ev and appends its line, newline included. Decode must not
// be called for the same event; AppendCall prints what it returned.
func (d *Decoder) AppendLine(dst []byte, ev *traces.Event, o *LineOptions) []byte {
	c := d.Decode(ev)
	return d.AppendCall(dst, ev, &c, o)
}

// AppendCall appends the line of an event that Decode has decoded as c.
func (d *Decoder) AppendCall(dst []byte, ev *traces.Event, c *Call, o *LineOptions) []byte {
	return append(dst, '\n')
}
