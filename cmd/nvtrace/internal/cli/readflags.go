package cli

import (
	"flag"
	"os"
	"runtime/debug"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// ReadFlags are the flags of verbs that read a recording.
type ReadFlags struct {
	driver *rm.Version // nil: the recorded one
}

// Register adds the flags to a verb's.
func (f *ReadFlags) Register(fs *flag.FlagSet) {
	fs.Func("driver", "decode with the tables of this driver `VERSION` instead of the recorded one's", func(s string) error {
		v, err := rm.ParseVersion(s)
		f.driver = &v
		return err
	})
}

// Open opens a recording, "-" being stdin, and makes a decoder for it.
func (f *ReadFlags) Open(e *Env, name string) (*traces.Reader, *ioctl.Decoder, error) {
	name, err := e.streamed(name)
	if err != nil {
		return nil, nil, err
	}
	e.Reads(name)
	limitMemory(name)
	r, err := traces.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return r, f.Decoder(&r.Header), nil
}

// Decoder returns a decoder for the recording that has a header.
func (f *ReadFlags) Decoder(h *traces.Header) *ioctl.Decoder {
	if f.driver == nil {
		return ioctl.NewDecoder(h)
	}
	other := *h
	other.Driver = f.driver.String() // it alone decides, and is told of
	return ioctl.NewDecoder(&other)
}

// readerMemory is what a view of a recording takes at most beside what lies in the file, and beside its code.
const readerMemory = 40 << 20

// limitMemory has garbage collected before it is as much as what is needed: recordings may be strangers'. Where
// what is needed is more, reading takes longer.
func limitMemory(name string) {
	if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
		debug.SetMemoryLimit(readerMemory + st.Size())
	}
}
