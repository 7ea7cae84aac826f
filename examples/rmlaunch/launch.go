package main

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/rm/channel"
)

// The machine code of kernel/vectoradd.ptx for each architecture: kernel/build.sh makes it.
//
//go:embed kernel/*.cubin
var cubins embed.FS

// architectures are the compute classes with the code that GPUs of the class run: that of the
// oldest architecture that has the class.
var architectures = map[uint16]string{
	0xc5c0: "sm_75", 0xc6c0: "sm_80", 0xc7c0: "sm_86", 0xc9c0: "sm_89", 0xcbc0: "sm_90", 0xcdc0: "sm_100", 0xcec0: "sm_120",
}

// kernel is a kernel's code and what a launch must know of it.
type kernel struct {
	fatbin.Kernel
	arch string
	code []byte
}

// kernelFor loads vectorAdd for a compute class.
func kernelFor(class uint16) (*kernel, error) {
	arch, ok := architectures[class]
	if !ok {
		return nil, fmt.Errorf("no code for compute class %04x", class)
	}
	image, err := cubins.ReadFile("kernel/" + arch + ".cubin")
	if err != nil {
		return nil, err
	}
	c, err := fatbin.ParseCubin(image)
	if err != nil {
		return nil, err
	}
	for i := range c.Sections { // code that names addresses would have to be told them
		if strings.HasPrefix(c.Sections[i].Name, ".rel.text") || strings.HasPrefix(c.Sections[i].Name, ".rela.text") {
			return nil, fmt.Errorf("%s: code with relocations", arch)
		}
	}
	for _, k := range c.Kernels {
		if k.Name == "vectorAdd" && k.MinStack <= 0 && k.Frame == 0 {
			s := c.Sections[k.Section]
			return &kernel{k, arch, image[s.Offset : s.Offset+s.Size]}, nil
		}
	}
	return nil, fmt.Errorf("%s: no vectorAdd that does without a stack", arch)
}

// bank0 is where the driver's part of constant bank 0 has what machine code reads there. It lies
// before the arguments, whose place the cubin says. As compiled code reads it, and, up to Hopper,
// as libcuda was seen to write it.
type bank0 struct {
	blockDim, gridDim, sharedWindow, localWindow, stack int
}

// bank0Of tells the layouts apart by the place of the arguments, which moved with them.
func bank0Of(k *kernel) bank0 {
	if k.ParamBase >= 0x380 { // Blackwell
		return bank0{blockDim: 0x360, gridDim: 0x370, sharedWindow: 0x2f0, localWindow: 0x2f8, stack: 0x37c}
	}
	return bank0{blockDim: 0, gridDim: 0xc, sharedWindow: 0x18, localWindow: 0x20, stack: 0x28}
}

// A thread reaches shared and local memory by common addresses too, in windows that a program puts
// where it has nothing else. stackTop is where a thread's stack begins, in the window of local
// memory: libcuda's number.
const (
	sharedWindow = 0x7fec_0000_0000
	localWindow  = 0x7feb_0000_0000
	stackTop     = 0xfffdc0
)

// constants makes constant bank 0 for a launch.
func (k *kernel) constants(l *channel.Launch, arguments ...any) ([]byte, error) {
	b := make([]byte, (k.Constant+15)&^15)
	at := bank0Of(k)
	for i := range 3 {
		binary.LittleEndian.PutUint32(b[at.blockDim+4*i:], l.Block[i])
		binary.LittleEndian.PutUint32(b[at.gridDim+4*i:], l.Grid[i])
	}
	binary.LittleEndian.PutUint64(b[at.sharedWindow:], sharedWindow)
	binary.LittleEndian.PutUint64(b[at.localWindow:], localWindow)
	binary.LittleEndian.PutUint32(b[at.stack:], stackTop)
	if len(arguments) != len(k.Params) {
		return nil, fmt.Errorf("%d arguments for %d parameters", len(arguments), len(k.Params))
	}
	for i, p := range k.Params {
		switch a := arguments[i].(type) {
		case uint32:
			binary.LittleEndian.PutUint32(b[k.ParamBase+p.Offset:], a)
		case uint64:
			binary.LittleEndian.PutUint64(b[k.ParamBase+p.Offset:], a)
		}
		if size := binary.Size(arguments[i]); size != p.Size {
			return nil, fmt.Errorf("argument %d has %d bytes, the parameter %d", i, size, p.Size)
		}
	}
	return b, nil
}

// qmd makes the QMD of a launch.
func (k *kernel) qmd(class *channel.Class, smVersion uint32, l channel.Launch) (channel.QMD, error) {
	q, ok := class.NewQMD()
	if !ok {
		return channel.QMD{}, fmt.Errorf("class %04x has no QMD", class.Number)
	}
	if err := q.SetLaunch(l); err != nil {
		return channel.QMD{}, err
	}
	// How much of a multiprocessor's first-level cache becomes shared memory, in steps of 4 KiB plus
	// one: 32 KiB will do, and no block of this grid waits for more.
	const config = 32/4 + 1
	for _, f := range []struct {
		name  string
		value uint64
	}{
		{"QMD_GROUP_ID", 0x3f},          // which of the scheduler's queues; libcuda's for all launches
		{"SM_GLOBAL_CACHING_ENABLE", 1}, // loads may stay in the first-level cache (up to QMD 3)
		{"API_VISIBLE_CALL_LIMIT", 1},   // no limit to calls
		{"SAMPLER_INDEX", 1},            // textures name their sampler
		{"CWD_MEMBAR_TYPE", 1},          // at the grid's end its writes are visible to the whole system
		{"BARRIER_COUNT", uint64(max(1, k.Barriers))},
		{"SASS_VERSION", uint64(smVersion>>4&0xf0 | smVersion&0xf)},
		{"MIN_SM_CONFIG_SHARED_MEM_SIZE", config},
		{"MAX_SM_CONFIG_SHARED_MEM_SIZE", config},
		{"TARGET_SM_CONFIG_SHARED_MEM_SIZE", config},
		// Caches may have what was at these addresses before.
		{"INVALIDATE_TEXTURE_HEADER_CACHE", 1},
		{"INVALIDATE_TEXTURE_SAMPLER_CACHE", 1},
		{"INVALIDATE_TEXTURE_DATA_CACHE", 1},
		{"INVALIDATE_SHADER_DATA_CACHE", 1},
		{"INVALIDATE_INSTRUCTION_CACHE", 1},
		{"INVALIDATE_SHADER_CONSTANT_CACHE", 1},
	} {
		if _, ok := q.Get(f.name); !ok && f.name == "SM_GLOBAL_CACHING_ENABLE" {
			continue
		}
		if err := q.Set(f.name, f.value); err != nil {
			return channel.QMD{}, err
		}
	}
	return q, nil
}

// computeChannel is the subchannel that the compute object is bound to: 1 by custom.
const computeChannel = 1

// methods makes the piece of pushbuffer that launches a QMD and releases the semaphore behind it.
func methods(class *channel.Class, qmd, semaphore uint64, payload uint32) *channel.Writer {
	var w channel.Writer
	put := func(name string, data ...uint32) { w.Methods(class, computeChannel, name, data...) }
	set := func(name, fields string) { w.Fields(class, computeChannel, name, fields) }
	w.Bind(class, computeChannel)
	put("SET_SHADER_SHARED_MEMORY_WINDOW_A", high(sharedWindow), low(sharedWindow))
	put("SET_SHADER_LOCAL_MEMORY_WINDOW_A", high(localWindow), low(localWindow))
	set("INVALIDATE_SHADER_CACHES_NO_WFI", "INSTRUCTION=TRUE GLOBAL_DATA=TRUE CONSTANT=TRUE")

	put("SEND_PCAS_A", uint32(qmd>>8)) // hence a QMD's alignment of 256 bytes
	if class.Has("SEND_SIGNALING_PCAS2_B") {
		set("SEND_SIGNALING_PCAS2_B", "PCAS_ACTION=INVALIDATE_COPY_SCHEDULE")
	} else { // Turing
		set("SEND_SIGNALING_PCAS_B", "INVALIDATE=TRUE SCHEDULE=TRUE")
	}

	put("SET_REPORT_SEMAPHORE_A", high(semaphore), low(semaphore), payload)
	set("SET_REPORT_SEMAPHORE_D", "OPERATION=RELEASE STRUCTURE_SIZE=ONE_WORD")
	return &w
}

func high(v uint64) uint32 { return uint32(v >> 32) }
func low(v uint64) uint32  { return uint32(v) }

// vectorAdd runs the kernel on n elements and checks what it made. It returns the time from the
// doorbell to the semaphore, as the processor saw it.
func (c *queue) vectorAdd(n int, wait time.Duration) (time.Duration, error) {
	const blockSize = 256
	class := channel.ClassOf(uint16(c.compute.ID))
	k := c.kernel

	// The vectors, in the GPU's memory.
	vector := func(i int) []byte { return c.video.b[dataAt+4*n*i:][:4*n] }
	a, b := func(i int) float32 { return float32(i) }, func(i int) float32 { return 0.5 * float32(i%1024) }
	one, two := make([]byte, 4*n), make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(one[4*i:], math.Float32bits(a(i)))
		binary.LittleEndian.PutUint32(two[4*i:], math.Float32bits(b(i)))
	}
	copy(vector(0), one)
	copy(vector(1), two)
	clear(vector(2))

	// The code, the constants, the QMD.
	if len(k.code) > dataAt-codeAt-0x1000 || k.Constant > codeAt-constantsAt {
		return 0, fmt.Errorf("%d bytes of code or %d of constants are too many", len(k.code), k.Constant)
	}
	copy(c.video.b[codeAt:], k.code)
	shared := uint32(0x400) // what each block's shared memory begins with since Ampere
	if c.compute.ID < 0xc6c0 {
		shared = 0
	}
	l := channel.Launch{
		Program: c.video.at + codeAt, Grid: [3]uint32{uint32((n + blockSize - 1) / blockSize), 1, 1}, Block: [3]uint32{blockSize, 1, 1},
		Registers: uint32(k.Registers+7) &^ 7, SharedMemory: shared + uint32(k.Shared),
		Constants: c.video.at + constantsAt,
	}
	data := func(i int) uint64 { return c.video.at + dataAt + uint64(4*n*i) }
	constants, err := k.constants(&l, data(0), data(1), data(2), uint32(n))
	if err != nil {
		return 0, err
	}
	l.ConstantSize = uint32(len(constants))
	copy(c.video.b[constantsAt:], constants)
	q, err := k.qmd(class, c.smVersion, l)
	if err != nil {
		return 0, err
	}
	copy(c.video.b[qmdAt:], q.Bytes())

	// The pushbuffer, and the entry of the ring that points to it.
	const payload = 1
	w := methods(class, c.video.at+qmdAt, c.system.at+semaphoreAt, payload)
	for i, word := range w.Words {
		binary.LittleEndian.PutUint32(c.system.b[pushAt+4*i:], word)
	}
	entry, ok := channel.Entry{Address: c.system.at + pushAt, Words: uint32(len(w.Words)), Subroutine: true}.Encode()
	if !ok {
		return 0, fmt.Errorf("address %#x is too high for a ring", c.system.at)
	}
	binary.LittleEndian.PutUint64(c.video.b[ringAt:], entry)
	c.show(&q, w)

	// USERD is to say that the ring has one entry, after all else is there; then the doorbell.
	start := time.Now()
	fence()
	store(c.video.b, userDataAt+channel.GPPutOffset, 1)
	fence()
	store(c.doorbell, doorbellAt, c.token)
	fence()
	for load(c.system.b, semaphoreAt) != payload {
		if err := c.failure(); err != nil {
			return 0, fmt.Errorf("%w; %s", err, c.where())
		}
		if time.Since(start) > wait {
			return 0, fmt.Errorf("the GPU has not come to the semaphore in %v: %s", wait, c.where())
		}
		c.sys.pause(10 * time.Microsecond)
	}
	took := time.Since(start)

	// What came of it.
	sum := make([]byte, 4*n)
	copy(sum, vector(2))
	for i := range n {
		if got, want := math.Float32frombits(binary.LittleEndian.Uint32(sum[4*i:])), a(i)+b(i); got != want {
			// After a fault of the kernel the semaphore may be released before the driver knows.
			c.sys.pause(100 * time.Millisecond)
			return 0, errors.Join(fmt.Errorf("element %d is %v, not %v", i, got, want), c.failure())
		}
	}
	return took, nil
}

// where says how far the GPU has come in the channel.
func (c *queue) where() string {
	u := make([]byte, channel.UserDataSize)
	copy(u, c.video.b[userDataAt:])
	d := channel.ParseUserData(u)
	return fmt.Sprintf("of the ring %d of %d entries are fetched; in the pushbuffer it is at %#x", d.GPGet, d.GPPut, d.Get)
}

// show prints the QMD's fields and the pushbuffer, as nvtrace pushbuffer does.
func (c *queue) show(q *channel.QMD, w *channel.Writer) {
	c.logf("QMD %d.%d, %d bytes at %#x:", q.Layout.Major, q.Layout.Minor, len(q.Bytes()), c.video.at+qmdAt)
	for i := range q.Layout.Fields {
		f := &q.Layout.Fields[i]
		if v, ok := q.Get(f.Name); ok && v != 0 {
			c.logf("%s", strings.TrimRight(fmt.Sprintf("  %s=%#x %s", f.Name, v, f.ValueName(v)), " "))
		}
	}
	c.logf("the pushbuffer:")
	r := channel.Reader{
		Subchannels: channel.Subchannels{Host: channel.ClassOf(uint16(c.channels.ID))},
		ReadQMD: func(_ uint64, b []byte) bool {
			return copy(b, q.Bytes()) > 0
		},
	}
	_ = r.Fprint(c.log, w.Words, c.system.at+pushAt, func(uint64) string { return c.kernel.Name })
}
