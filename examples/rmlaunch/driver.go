package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/rm"
)

// driver is a conversation with NVIDIA's kernel driver: the control node, a client (the object
// that all others belong to), and the node of one GPU.
type driver struct {
	sys    system
	log    io.Writer // a line for each call
	abi    *rm.ABI
	ctl    int    // descriptor of /dev/nvidiactl
	node   string // of the GPU: /dev/nvidia0
	client handle
	last   handle
	gpuID  uint32
	undo   []func() error // what gives back what was taken, in the order of taking
}

// A handle names an object of the driver's, as a descriptor names a file. A client chooses the
// handles of its objects itself.
type handle uint32

// after notes how to give something back.
func (d *driver) after(f func() error) { d.undo = append(d.undo, f) }

// close gives everything back, the latest first.
func (d *driver) close() error {
	var errs []error
	for _, giveBack := range slices.Backward(d.undo) {
		errs = append(errs, giveBack())
	}
	d.undo = nil
	return errors.Join(errs...)
}

func (d *driver) logf(format string, args ...any) { fmt.Fprintf(d.log, format+"\n", args...) }

// open opens a node.
func (d *driver) open(path string) (int, error) {
	fd, err := d.sys.open(path)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	d.logf("open %s = %d", path, fd)
	return fd, nil
}

func (d *driver) closeNode(path string, fd int) error {
	if err := d.sys.close(fd); err != nil {
		return fmt.Errorf("close %s: %w", path, err)
	}
	return nil
}

// lacks says that the driver's release has no structure, class or the like.
func (d *driver) lacks(kind, name string) error {
	return fmt.Errorf("driver %v has no %s %s (by the tables of %v)", d.abi.Asked(), kind, name, d.abi.Version())
}

// record makes one of the driver's structures.
func (d *driver) record(name string, f fields) (record, error) {
	layout := d.abi.Struct(name)
	if layout == nil {
		return record{}, d.lacks("structure", name)
	}
	r := newRecord(layout)
	return r, r.set(f)
}

// escape is an ioctl on one of the driver's nodes. That it returns 0 says only that it was
// understood: what came of it is the status in the structure.
func (d *driver) escape(fd int, nr uint32, what string, r record) error {
	if err := d.sys.ioctl(fd, nr, r.b); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	status := rm.Status(0)
	for _, path := range []string{"status", "params.status"} {
		if v, err := r.get(path); err == nil {
			status = rm.Status(v)
		}
	}
	d.logf("%s = %v", what, status)
	if status != 0 {
		return fmt.Errorf("%s: %v", what, status)
	}
	return nil
}

// alloc makes an object of a class under another one, and has it freed in the end. The record
// that it returns is what the driver made of the parameters; nil parameters are none.
func (d *driver) alloc(parent handle, class string, f fields) (handle, record, error) {
	c := d.classNamed(class)
	if c == nil {
		return 0, record{}, d.lacks("class", class)
	}
	d.last++
	object := d.last
	r, err := d.record("NVOS21_PARAMETERS", fields{
		"hRoot": uint32(d.client), "hObjectParent": uint32(parent), "hObjectNew": uint32(object), "hClass": c.ID,
	})
	if err != nil {
		return 0, record{}, err
	}
	var params record
	if f != nil {
		if c.Alloc == nil {
			return 0, record{}, fmt.Errorf("class %s takes no parameters", class)
		}
		params = newRecord(c.Alloc)
		if err := params.set(f); err != nil {
			return 0, record{}, fmt.Errorf("class %s: %w", class, err)
		}
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	if err := r.set(fields{"pAllocParms": address(&pin, params.b)}); err != nil {
		return 0, record{}, err
	}
	if r.has("paramsSize") { // since 535
		if err := r.set(fields{"paramsSize": len(params.b)}); err != nil {
			return 0, record{}, err
		}
	}
	if err := d.escape(d.ctl, rm.EscRMAlloc, "NV_ESC_RM_ALLOC "+class, r); err != nil {
		return 0, record{}, err
	}
	d.after(func() error { return d.free(parent, object, class) })
	return object, params, nil
}

// free frees an object. What was made under it would end with it.
func (d *driver) free(parent, object handle, class string) error {
	r, err := d.record("NVOS00_PARAMETERS", fields{"hRoot": uint32(d.client), "hObjectParent": uint32(parent), "hObjectOld": uint32(object)})
	if err != nil {
		return err
	}
	return d.escape(d.ctl, rm.EscRMFree, "NV_ESC_RM_FREE "+class, r)
}

// control calls a method of an object.
func (d *driver) control(object handle, command string, f fields) (record, error) {
	var c *rm.Control
	for each := range d.abi.Controls() {
		if each.Name == command {
			c = each
		}
	}
	if c == nil || c.Params == nil {
		return record{}, fmt.Errorf("driver %v has no command %s", d.abi.Version(), command)
	}
	params := newRecord(c.Params)
	if err := params.set(f); err != nil {
		return record{}, fmt.Errorf("%s: %w", command, err)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	r, err := d.record("NVOS54_PARAMETERS", fields{
		"hClient": uint32(d.client), "hObject": uint32(object), "cmd": c.Cmd,
		"params": address(&pin, params.b), "paramsSize": len(params.b),
	})
	if err != nil {
		return record{}, err
	}
	return params, d.escape(d.ctl, rm.EscRMControl, "NV_ESC_RM_CONTROL "+command, r)
}

func (d *driver) classNamed(name string) *rm.Class {
	for c := range d.abi.Classes() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// connect opens the control node, learns the driver's release, makes the client, and finds the GPU.
func connect(sys system, log io.Writer, minor int) (*driver, error) {
	d := &driver{sys: sys, log: log, abi: rm.Newest(), last: 0x1000}
	for _, step := range []func() error{d.openControl, d.greet, d.newClient, func() error { return d.findGPU(minor) }} {
		if err := step(); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, nil
}

// openControl opens the node that most calls go to, whichever GPU they concern.
func (d *driver) openControl() (err error) {
	const node = "/dev/nvidiactl"
	if d.ctl, err = d.open(node); err != nil {
		return err
	}
	d.after(func() error { return d.closeNode(node, d.ctl) })
	return nil
}

// newClient makes the client: its handle is the driver's to choose.
func (d *driver) newClient() error {
	root := d.classNamed("NV01_ROOT_CLIENT")
	if root == nil {
		return d.lacks("class", "NV01_ROOT_CLIENT")
	}
	r, err := d.record("NVOS21_PARAMETERS", fields{"hClass": root.ID})
	if err != nil {
		return err
	}
	if err := d.escape(d.ctl, rm.EscRMAlloc, "NV_ESC_RM_ALLOC "+root.Name, r); err != nil {
		return err
	}
	client, err := r.get("hObjectNew")
	if err != nil {
		return err
	}
	d.client = handle(client)
	d.after(func() error { return d.free(0, d.client, root.Name) })
	return nil
}

// greet asks for the driver's release: it decides which tables hold.
func (d *driver) greet() error {
	r, err := d.record("nv_ioctl_rm_api_version_t", fields{"cmd": int('2')}) // NV_RM_API_VERSION_CMD_QUERY
	if err != nil {
		return err
	}
	if err := d.escape(d.ctl, rm.EscCheckVersionStr, "NV_ESC_CHECK_VERSION_STR", r); err != nil {
		return err
	}
	text, err := r.bytes("versionString")
	if err != nil {
		return err
	}
	release, _, _ := bytes.Cut(text, []byte{0})
	v, err := rm.ParseVersion(string(release))
	if err != nil {
		return fmt.Errorf("the driver's release: %w", err)
	}
	d.abi = rm.Load(v)
	d.logf("driver %v, by the tables of %v", v, d.abi.Version())
	return nil
}

// findGPU finds a card by its minor number, or the first whose node can be opened here if that is
// negative, and has the driver make it ready for this client.
func (d *driver) findGPU(minor int) error {
	const maxCards = 32 // NV_MAX_DEVICES
	layout := d.abi.Struct("nv_ioctl_card_info_t")
	if layout == nil {
		return d.lacks("structure", "nv_ioctl_card_info_t")
	}
	all := record{layout, make([]byte, maxCards*layout.Size)}
	if err := d.sys.ioctl(d.ctl, rm.EscCardInfo, all.b); err != nil {
		return fmt.Errorf("NV_ESC_CARD_INFO: %w", err)
	}
	var refused []error
	for i := range maxCards {
		card := record{layout, all.b[i*layout.Size:]}
		valid, err := card.get("valid")
		if err != nil {
			return err
		}
		number, err := card.get("minor_number")
		if err != nil {
			return err
		}
		if valid == 0 || minor >= 0 && int(number) != minor {
			continue
		}
		id, err := card.get("gpu_id")
		if err != nil {
			return err
		}
		d.node, d.gpuID = fmt.Sprintf("/dev/nvidia%d", number), uint32(id)
		fd, err := d.openGPU()
		if err != nil { // a container may have some of the machine's GPUs
			refused = append(refused, err)
			continue
		}
		// As long as one descriptor is open the driver keeps the GPU awake.
		node := d.node
		d.after(func() error { return d.closeNode(node, fd) })
		_, err = d.control(d.client, "NV0000_CTRL_CMD_GPU_ATTACH_IDS", fields{"gpuIds[0]": d.gpuID, "gpuIds[1]": uint32(0xffffffff)})
		return err
	}
	none := fmt.Errorf("driver %v has no GPU that can be opened", d.abi.Asked())
	if minor >= 0 {
		none = fmt.Errorf("driver %v has no GPU /dev/nvidia%d that can be opened", d.abi.Asked(), minor)
	}
	return errors.Join(append([]error{none}, refused...)...)
}

// openGPU opens the GPU's node for this client.
func (d *driver) openGPU() (int, error) {
	fd, err := d.open(d.node)
	if err != nil {
		return -1, err
	}
	r, err := d.record("nv_ioctl_register_fd_t", fields{"ctl_fd": d.ctl})
	if err == nil {
		err = d.escape(fd, rm.EscRegisterFD, "NV_ESC_REGISTER_FD", r)
	}
	if err != nil {
		return -1, errors.Join(err, d.closeNode(d.node, fd))
	}
	return fd, nil
}

// mapCPU makes an object's memory part of this process. It takes two steps: NV_ESC_RM_MAP_MEMORY
// ties the object to an open file, and mmap of that file maps it. The file is of the GPU's node for
// what lies behind the GPU's bus addresses (BAR), of the control node for system memory.
func (d *driver) mapCPU(parent, object handle, bar bool, length, prot int, flags string) ([]byte, error) {
	node := "/dev/nvidiactl"
	openNode := func() (int, error) { return d.open(node) }
	if bar {
		node, openNode = d.node, d.openGPU
	}
	fd, err := openNode()
	if err != nil {
		return nil, err
	}
	r, err := d.record("nv_ioctl_nvos33_parameters_with_fd", fields{
		"params.hClient": uint32(d.client), "params.hDevice": uint32(parent), "params.hMemory": uint32(object),
		"params.length": length, "params.flags": flags, "fd": fd,
	})
	if err == nil {
		err = d.escape(d.ctl, rm.EscRMMapMemory, "NV_ESC_RM_MAP_MEMORY", r)
	}
	var b []byte
	if err == nil {
		if b, err = d.sys.mmap(fd, length, prot); err != nil {
			err = fmt.Errorf("mmap %s: %w", node, err)
		}
	}
	// The mapping outlives the descriptor.
	if err := errors.Join(err, d.closeNode(node, fd)); err != nil {
		return nil, err
	}
	cookie, err := r.get("params.pLinearAddress")
	if err != nil {
		return nil, err
	}
	d.after(func() error {
		if err := d.sys.munmap(b); err != nil {
			return fmt.Errorf("munmap: %w", err)
		}
		r, err := d.record("NVOS34_PARAMETERS", fields{
			"hClient": uint32(d.client), "hDevice": uint32(parent), "hMemory": uint32(object), "pLinearAddress": cookie,
		})
		if err != nil {
			return err
		}
		return d.escape(d.ctl, rm.EscRMUnmapMemory, "NV_ESC_RM_UNMAP_MEMORY", r)
	})
	return b, nil
}

// mapGPU gives an object's memory an address in the GPU's address space that space stands for.
func (d *driver) mapGPU(device, space, memory handle, length int, flags string) (uint64, error) {
	r, err := d.record("NVOS46_PARAMETERS", fields{
		"hClient": uint32(d.client), "hDevice": uint32(device), "hDma": uint32(space), "hMemory": uint32(memory),
		"length": length, "flags": flags,
	})
	if err != nil {
		return 0, err
	}
	if err := d.escape(d.ctl, rm.EscRMMapMemoryDMA, "NV_ESC_RM_MAP_MEMORY_DMA", r); err != nil {
		return 0, err
	}
	at, err := r.get("dmaOffset")
	if err != nil {
		return 0, err
	}
	d.logf("  %#x", at)
	d.after(func() error {
		r, err := d.record("NVOS47_PARAMETERS", fields{
			"hClient": uint32(d.client), "hDevice": uint32(device), "hDma": uint32(space), "hMemory": uint32(memory), "dmaOffset": at,
		})
		if err != nil {
			return err
		}
		return d.escape(d.ctl, rm.EscRMUnmapMemoryDMA, "NV_ESC_RM_UNMAP_MEMORY_DMA", r)
	})
	return at, nil
}

// protection is what mmap wants to hear.
const (
	readWrite = unix.PROT_READ | unix.PROT_WRITE
	writeOnly = unix.PROT_WRITE
)

// wordList reads a list of 32-bit numbers.
func wordList(b []byte, n int) []uint32 {
	var list []uint32
	for ; n > 0 && len(b) >= 4; n-- {
		list = append(list, uint32(number(b, 4)))
		b = b[4:]
	}
	return list
}

// title is a class's name with its number.
func title(c *rm.Class) string { return fmt.Sprintf("%s (%04x)", strings.TrimSpace(c.Name), c.ID) }
