package emu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"nvtrace/ptx"
)

// An Arg is one kernel argument as a command line gives it.
type Arg struct {
	Kind  string // "u8" … "s64", "f16", "f32", "f64", "buf", "zeros", "hex"
	Bytes []byte // of a number or hex: its bytes; of a buffer: its contents
	Out   string // buf and zeros: file that gets the contents after the run, "" for none
	buf   bool
}

// ParseArg parses an argument:
//
//	u32:5  s64:-1  u8:0xff          an integer of that type
//	f32:1.5  f64:1e-3  f16:2  bf16:1   a number
//	hex:00112233                    bytes of a structure passed by value
//	buf:FILE[:out=FILE]             the address of a buffer with the file's contents
//	zeros:4096[:out=FILE]           the address of so many zero bytes
//
// readFile reads the file of a buf; nil means os.ReadFile.
func ParseArg(s string, readFile func(string) ([]byte, error)) (*Arg, error) {
	kind, val, ok := strings.Cut(s, ":")
	if !ok {
		return nil, fmt.Errorf("argument %q: want TYPE:VALUE, such as u32:5, f32:1.5, buf:FILE or zeros:4096", s)
	}
	a := &Arg{Kind: kind}
	var err error
	switch kind {
	case "buf", "zeros":
		err = a.parseBuffer(val, readFile)
	case "hex":
		a.Bytes, err = parseHex(val)
	default:
		a.Bytes, err = parseNumber(kind, val)
	}
	if err != nil {
		return nil, fmt.Errorf("argument %q: %w", s, err)
	}
	return a, nil
}

// maxZeros bounds a buffer given on the command line.
const maxZeros = 1 << 32

func (a *Arg) parseBuffer(val string, readFile func(string) ([]byte, error)) error {
	a.buf = true
	val, a.Out, _ = strings.Cut(val, ":out=")
	if a.Kind == "zeros" {
		n, err := strconv.ParseUint(val, 0, 64)
		if err != nil || n == 0 || n > maxZeros {
			return fmt.Errorf("size %q: want 1 to %d", val, uint64(maxZeros))
		}
		a.Bytes = make([]byte, n)
		return nil
	}
	if readFile == nil {
		readFile = os.ReadFile
	}
	b, err := readFile(val)
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("%s is empty", val)
	}
	a.Bytes = b
	return err
}

func parseHex(val string) ([]byte, error) {
	if len(val)%2 != 0 || val == "" {
		return nil, fmt.Errorf("%d hexadecimal digits, want an even number", len(val))
	}
	b := make([]byte, len(val)/2)
	for i := range b {
		v, err := strconv.ParseUint(val[2*i:2*i+2], 16, 8)
		if err != nil {
			return nil, fmt.Errorf("%q is not hexadecimal", val[2*i:2*i+2])
		}
		b[i] = byte(v)
	}
	return b, nil
}

func parseNumber(kind, val string) ([]byte, error) {
	t, ok := typeNames["."+kind]
	if !ok || t == ptx.Pred || t == ptx.B128 {
		return nil, fmt.Errorf("unknown type %q; known: u8 u16 u32 u64 s8 s16 s32 s64 b8 b16 b32 b64 f16 bf16 f32 f64 hex buf zeros", kind)
	}
	bits := t.Size() * 8
	var v uint64
	var err error
	switch f := formatOf(t); {
	case f != nil:
		var x float64
		x, err = strconv.ParseFloat(val, 64)
		v = fromF64(x, f, roundNearest)
		if t == ptx.F64 {
			v = math.Float64bits(x)
		}
	case t.Signed() || strings.HasPrefix(val, "-"):
		var x int64
		x, err = strconv.ParseInt(val, 0, bits)
		v = uint64(x)
	default:
		v, err = strconv.ParseUint(val, 0, bits)
	}
	if err != nil {
		if ne, ok := errors.AsType[*strconv.NumError](err); ok {
			err = ne.Err
		}
		return nil, fmt.Errorf("%q is no %s: %w", val, kind, err)
	}
	return binary.LittleEndian.AppendUint64(nil, v)[:bits/8], nil
}

// ParseDim parses "X", "X,Y" or "X,Y,Z".
func ParseDim(s string) (Dim3, error) {
	d := [3]uint32{1, 1, 1}
	parts := strings.Split(s, ",")
	if len(parts) > 3 {
		return Dim3{}, fmt.Errorf("size %q: want X[,Y[,Z]]", s)
	}
	for i, p := range parts {
		v, err := strconv.ParseUint(strings.TrimSpace(p), 10, 32)
		if err != nil || v == 0 {
			return Dim3{}, fmt.Errorf("size %q: %q is no positive number", s, p)
		}
		d[i] = uint32(v)
	}
	return Dim3{d[0], d[1], d[2]}, nil
}

// A Run is one launch of a kernel of a file, as `nvtrace ptx run` makes it.
type Run struct {
	File        *ptx.File                            // the module
	Kernel      string                               // "" if the file has only one
	Grid, Block Dim3                                 // as in LaunchConfig
	Cluster     Dim3                                 // as in LaunchConfig
	SharedBytes uint32                               // dynamic shared memory
	Args        []*Arg                               // one for each parameter of the kernel
	Race        bool                                 // look for data races
	Cooperative bool                                 // as in LaunchConfig
	Options     *Options                             // of the machine; nil for the defaults
	WriteFile   func(name string, data []byte) error // for out=; nil means os.WriteFile with mode 0644
}

// A RunResult is what a Run did.
type RunResult struct {
	Kernel  string   // its name
	Stats   Stats    // also of a launch that failed
	Races   []Race   // with Race set
	Buffers [][]byte // contents of the buffer arguments after the run, in order; nil for other arguments
}

// Do allocates the buffers, launches the kernel and writes the outputs. The
// outputs are written, and the result is there, even if the launch fails.
func (r *Run) Do(ctx context.Context) (*RunResult, error) {
	m := New(r.Options)
	mod, err := m.Load(r.File)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	defer mod.Unload()
	k, err := r.kernel(mod)
	if err != nil {
		return nil, err
	}
	res := &RunResult{Kernel: k.name, Buffers: make([][]byte, len(r.Args))}
	params, err := r.params(m, k, res)
	if err != nil {
		return nil, err
	}
	cfg := &LaunchConfig{
		Grid: r.Grid, Block: r.Block, Cluster: r.Cluster, SharedBytes: r.SharedBytes, Params: params, Cooperative: r.Cooperative,
	}
	if r.Race {
		cfg.Race = &RaceLog{}
	}
	res.Stats, err = m.Launch(ctx, k, cfg)
	if r.Race {
		res.Races = cfg.Race.Races()
	}
	return res, errors.Join(err, r.write(res))
}

// kernel returns the kernel that is asked for, or the only one.
func (r *Run) kernel(mod *Module) (*Kernel, error) {
	name := r.Kernel
	if name == "" {
		names := mod.Kernels()
		if len(names) != 1 {
			return nil, fmt.Errorf("%s has %d kernels: %s; name one", r.File.Name, len(names), strings.Join(names, ", "))
		}
		name = names[0]
	}
	return mod.Kernel(name)
}

// params builds the parameter buffer.
func (r *Run) params(m *Machine, k *Kernel, res *RunResult) ([]byte, error) {
	if len(r.Args) != len(k.params) {
		return nil, fmt.Errorf("kernel %s has %d parameters, %d arguments are given", k.name, len(k.params), len(r.Args))
	}
	buf := make([]byte, k.ParamBytes())
	for i, a := range r.Args {
		p, val := k.params[i], a.Bytes
		if a.buf {
			reg, err := m.Alloc(uint64(len(a.Bytes)), fmt.Sprintf("argument %d", i+1))
			if err != nil {
				return nil, fmt.Errorf("argument %d: %w", i+1, err)
			}
			copy(reg.Data, a.Bytes)
			res.Buffers[i] = reg.Data
			val = binary.LittleEndian.AppendUint64(nil, reg.Base)
			if p.Size == 4 { // of a 32-bit module
				if reg.Base+uint64(len(reg.Data)) > 1<<32 {
					return nil, fmt.Errorf("argument %d (%s): its %d bytes end beyond what a parameter of 4 bytes can point to", i+1, a.Kind, len(reg.Data))
				}
				val = val[:4]
			}
		}
		if uint64(len(val)) != p.Size {
			return nil, fmt.Errorf("argument %d (%s) has %d bytes, the parameter has %d", i+1, a.Kind, len(val), p.Size)
		}
		copy(buf[p.Offset:], val)
	}
	return buf, nil
}

// write stores the buffers that have an out=.
func (r *Run) write(res *RunResult) error {
	put := r.WriteFile
	if put == nil {
		put = func(name string, data []byte) error { return os.WriteFile(name, data, 0o644) }
	}
	var errs []error
	for i, a := range r.Args {
		if a.Out != "" {
			if err := put(a.Out, res.Buffers[i]); err != nil {
				errs = append(errs, fmt.Errorf("argument %d: %w", i+1, err))
			}
		}
	}
	return errors.Join(errs...)
}
