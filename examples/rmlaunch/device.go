package main

import (
	"errors"
	"fmt"
	"runtime"

	"nvtrace/rm"
	"nvtrace/rm/channel"
)

// gpu is a device of the driver's with what all its channels share.
type gpu struct {
	*driver
	device, subdevice handle

	// The newest classes that both the GPU and the tables have: one of each kind.
	usermode, channels, compute *rm.Class

	kernel    *kernel
	smVersion uint32 // the multiprocessors' version, in the driver's count: 0x900 is 9.0

	doorbell []byte // the page of registers that has the doorbell
}

// newGPU makes the device and what is below it, and learns what the GPU is.
func (d *driver) newGPU() (*gpu, error) {
	g := &gpu{driver: d}
	id, err := d.control(d.client, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", fields{"gpuId": d.gpuID})
	if err != nil {
		return nil, err
	}
	instance, err := id.get("deviceInstance")
	if err != nil {
		return nil, err
	}
	sub, err := id.get("subDeviceInstance")
	if err != nil {
		return nil, err
	}
	// A device is a group of GPUs that work as one, mostly of one; its subdevice is the GPU in it. The
	// device may have several address spaces: we bring our own.
	if g.device, _, err = d.alloc(d.client, "NV01_DEVICE_0", fields{
		"deviceId": instance, "hClientShare": uint32(d.client), "vaMode": "MULTIPLE_VASPACES",
	}); err != nil {
		return nil, err
	}
	if g.subdevice, _, err = d.alloc(g.device, "NV20_SUBDEVICE_0", fields{"subDeviceId": sub}); err != nil {
		return nil, err
	}
	if err := g.findClasses(); err != nil {
		return nil, err
	}
	if err := g.findVersion(); err != nil {
		return nil, err
	}
	return g, g.mapDoorbell()
}

// findClasses picks the classes to speak to the GPU by. What an architecture adds to methods and
// QMDs comes as a class of a new number.
func (g *gpu) findClasses() error {
	r, err := g.control(g.device, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2", fields{})
	if err != nil {
		return err
	}
	n, err := r.get("numClasses")
	if err != nil {
		return err
	}
	list, err := r.bytes("classList")
	if err != nil {
		return err
	}
	newest := func(have, c *rm.Class) *rm.Class {
		if have == nil || c.ID > have.ID {
			return c
		}
		return have
	}
	for _, number := range wordList(list, int(n)) {
		c := g.abi.Class(number)
		known := channel.ClassOf(uint16(number))
		switch {
		case c == nil:
		case c.Kind == rm.Usermode:
			g.usermode = newest(g.usermode, c)
		case known == nil:
		case c.Kind == rm.Channel && known.Kind == channel.Host:
			g.channels = newest(g.channels, c)
		case c.Kind == rm.Compute && known.Kind == channel.Compute:
			g.compute = newest(g.compute, c)
		}
	}
	if g.usermode == nil || g.channels == nil || g.compute == nil {
		return errors.New("the GPU is older than Volta, or newer than the tables: no class of doorbell, channel or compute engine is known")
	}
	g.logf("classes %s, %s, %s", title(g.usermode), title(g.channels), title(g.compute))
	g.kernel, err = kernelFor(uint16(g.compute.ID))
	return err
}

// findVersion asks for the multiprocessors' version, which the QMD repeats.
func (g *gpu) findVersion() error {
	info, err := g.record("NV2080_CTRL_GR_INFO", fields{"index": 12}) // NV2080_CTRL_GR_INFO_INDEX_SM_VERSION
	if err != nil {
		return err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	if _, err := g.control(g.subdevice, "NV2080_CTRL_CMD_GR_GET_INFO", fields{
		"grInfoListSize": 1, "grInfoList": address(&pin, info.b),
	}); err != nil {
		return err
	}
	v, err := info.get("data")
	g.smVersion = uint32(v)
	g.logf("multiprocessors of version %#x", v)
	return err
}

const (
	doorbellPage = 0x10000 // bytes of the registers that a program may have
	doorbellAt   = 0x90    // NVC361_NOTIFY_CHANNEL_PENDING, the same since Volta
)

func (g *gpu) mapDoorbell() error {
	h, _, err := g.alloc(g.subdevice, g.usermode.Name, nil)
	if err != nil {
		return err
	}
	g.doorbell, err = g.mapCPU(g.subdevice, h, true, doorbellPage, writeOnly, "ACCESS=WRITE_ONLY")
	return err
}

// memory is memory that both see: the processor as bytes, the GPU at an address.
type memory struct {
	handle handle
	b      []byte
	at     uint64
}

// space is an address space of the GPU, and the object that stands for a range in it when memory is
// mapped.
type space struct {
	vas, virtual handle
}

// newSpace makes an address space whose addresses and page tables the driver keeps. (libcuda has
// nvidia-uvm keep them, so that pages can move and an address can be the same for processor and
// GPU. That takes the GPU's and each channel's registration there, and two calls for each mapping.)
func (g *gpu) newSpace() (s space, err error) {
	if s.vas, _, err = g.alloc(g.device, "FERMI_VASPACE_A", fields{}); err != nil {
		return space{}, err
	}
	// A QMD's address has 40 bits in the method that launches it, and an entry of the ring as many.
	s.virtual, _, err = g.alloc(g.device, "NV01_MEMORY_VIRTUAL", fields{"hVASpace": uint32(s.vas), "limit": uint64(1<<40 - 1)})
	return s, err
}

// newVideoMemory allocates memory of the GPU. The processor writes to it over the bus (BAR 1).
func (g *gpu) newVideoMemory(s space, size int) (m memory, err error) {
	const page = 2 << 20
	size = (size + page - 1) &^ (page - 1)
	if m.handle, _, err = g.alloc(g.device, "NV01_MEMORY_LOCAL_USER", fields{
		"owner": uint32(g.client), "size": size, "alignment": page, "attr": "PHYSICALITY=ALLOW_NONCONTIGUOUS",
		"flags": "IGNORE_BANK_PLACEMENT|ALIGNMENT_FORCE|MEMORY_HANDLE_PROVIDED|MAP_NOT_REQUIRED|PERSISTENT_VIDMEM",
	}); err != nil {
		return memory{}, err
	}
	if m.b, err = g.mapCPU(g.subdevice, m.handle, true, size, readWrite, "ACCESS=READ_WRITE"); err != nil {
		return memory{}, err
	}
	m.at, err = g.mapGPU(g.device, s.virtual, m.handle, size, "ACCESS=READ_WRITE")
	return m, err
}

// newSystemMemory allocates memory of the machine. The GPU reads and writes it over the bus, and
// looks into the processor's caches (snoops).
func (g *gpu) newSystemMemory(s space, size int) (m memory, err error) {
	if m.handle, _, err = g.alloc(g.device, "NV01_MEMORY_SYSTEM", fields{
		"owner": uint32(g.client), "size": size, "attr": "LOCATION=PCI|PHYSICALITY=ALLOW_NONCONTIGUOUS|COHERENCY=CACHED",
		"flags": "IGNORE_BANK_PLACEMENT|MEMORY_HANDLE_PROVIDED|MAP_NOT_REQUIRED",
	}); err != nil {
		return memory{}, err
	}
	if m.b, err = g.mapCPU(g.device, m.handle, false, size, readWrite, "ACCESS=READ_WRITE"); err != nil {
		return memory{}, err
	}
	m.at, err = g.mapGPU(g.device, s.virtual, m.handle, size, "CACHE_SNOOP=ENABLE")
	return m, err
}

// newNotifier allocates the place where the driver says what went wrong with a channel. No GPU
// address: the driver itself writes there.
func (g *gpu) newNotifier() (m memory, err error) {
	const size = 4096
	if m.handle, _, err = g.alloc(g.device, "NV01_MEMORY_SYSTEM", fields{
		"owner": uint32(g.device), "type": "NOTIFIER", "size": size, "attr": "LOCATION=PCI|PHYSICALITY=ALLOW_NONCONTIGUOUS|COHERENCY=CACHED",
		"flags": "IGNORE_BANK_PLACEMENT|MEMORY_HANDLE_PROVIDED|MAP_NOT_REQUIRED",
	}); err != nil {
		return memory{}, err
	}
	m.b, err = g.mapCPU(g.device, m.handle, false, size, readWrite, "ACCESS=READ_WRITE")
	return m, err
}

// queue is a channel with a compute engine behind it.
type queue struct {
	*gpu
	video    memory // what mostly the GPU reads: the ring and what layout says
	system   memory // what passes between the two: pushbuffer and semaphore
	notifier memory
	token    uint32 // what the doorbell wants to hear
}

// What lies where in video memory, and in system memory.
const (
	ringEntries = 1024
	ringAt      = 0x0000 // ringEntries of 8 bytes
	userDataAt  = 0x2000 // USERD, behind the ring as libcuda has it
	qmdAt       = 0x4000
	constantsAt = 0x5000
	codeAt      = 0x6000 // with room behind it: the GPU fetches instructions ahead
	dataAt      = 0x10000

	pushAt      = 0x0000
	semaphoreAt = 0x1000
	systemSize  = 0x2000
)

// newChannel makes a channel and room for three vectors of n elements.
func (g *gpu) newChannel(n int) (*queue, error) {
	s, err := g.newSpace()
	if err != nil {
		return nil, err
	}
	c := &queue{gpu: g}
	if c.video, err = g.newVideoMemory(s, dataAt+3*4*n); err != nil {
		return nil, err
	}
	if c.system, err = g.newSystemMemory(s, systemSize); err != nil {
		return nil, err
	}
	if c.notifier, err = g.newNotifier(); err != nil {
		return nil, err
	}
	clear(c.video.b[:dataAt])
	fence()

	// Channels that run in turn with one another are a group; what addresses mean to one of its
	// channels is a context share (subcontext). One group, one share, one channel here.
	group, _, err := g.alloc(g.device, "KEPLER_CHANNEL_GROUP_A", fields{"engineType": "GR0"})
	if err != nil {
		return nil, err
	}
	share, _, err := g.alloc(group, "FERMI_CONTEXT_SHARE_A", fields{"hVASpace": uint32(s.vas), "flags": "SUBCONTEXT=ASYNC"})
	if err != nil {
		return nil, err
	}
	h, _, err := g.alloc(group, g.channels.Name, fields{
		"hObjectError": uint32(c.notifier.handle), "hObjectBuffer": uint32(c.video.handle),
		"gpFifoOffset": c.video.at + ringAt, "gpFifoEntries": ringEntries, "hContextShare": uint32(share),
		"hUserdMemory[0]": uint32(c.video.handle), "userdOffset[0]": userDataAt,
	})
	if err != nil {
		return nil, err
	}
	// The engine: its object has the channel's context made, in which the engine's state is kept
	// while other channels run.
	if _, _, err := g.alloc(h, g.compute.Name, nil); err != nil {
		return nil, err
	}
	r, err := g.control(h, "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN", fields{})
	if err != nil {
		return nil, err
	}
	token, err := r.get("workSubmitToken")
	if err != nil {
		return nil, err
	}
	c.token = uint32(token)
	// From now on the GPU may run the group's channels.
	if _, err := g.control(group, "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE", fields{"bEnable": true}); err != nil {
		return nil, err
	}
	g.logf("channel: ring at %#x, USERD at +%#x, token %#x", c.video.at+ringAt, userDataAt, c.token)
	return c, nil
}

// failure returns what the driver has written of an error of the channel, nil if it has not: a
// record of time, code and status (NvNotification).
func (c *queue) failure() error {
	if status := load(c.notifier.b, 12) >> 16; status != 0 {
		return fmt.Errorf("the driver stopped the channel: error %d (Xid), status %#x", load(c.notifier.b, 8), status)
	}
	return nil
}
