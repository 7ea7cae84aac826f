package query

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/rm"
)

// Memory is how much memory of a GPU a process has.
type Memory struct {
	Minor int    // N of the GPU's node, /dev/nvidiaN
	Bytes uint64 // its own, and what it shares with others and has allocated itself
}

// MemoryOf returns how much memory of each GPU each of the processes has. Processes without any are left out, as are GPUs
// that can't be opened here; the error says why there is none of which it is known.
func MemoryOf(pids []int) (map[int][]Memory, error) { return memoryOf(linux{}, pids) }

// system is what is asked of the kernel. Tests have a driver of their own behind it.
type system interface {
	open(path string) (fd int, err error)
	close(fd int) error
	ioctl(fd int, nr uint32, arg []byte) error // of type 'F', direction read and write
}

type linux struct{}

func (linux) open(path string) (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0) }
func (linux) close(fd int) error            { return unix.Close(fd) }

const (
	controlNode = "/dev/nvidiactl"
	maxCards    = 32  // NV_MAX_DEVICES
	maxPIDs     = 200 // NV2080_CTRL_GPU_GET_PID_INFO_MAX_COUNT
)

func memoryOf(sys system, pids []int) (map[int][]Memory, error) {
	c := &client{sys: sys, abi: rm.Newest(), next: 0x6e760000}
	defer c.close()
	if err := c.connect(); err != nil {
		return nil, fmt.Errorf("memory by process: %w", err)
	}
	found, known := map[int][]Memory{}, false
	var refused []error
	cards, err := c.cards()
	for _, card := range cards {
		for part := range slices.Chunk(pids, maxPIDs) {
			sizes, err := c.memory(card, part)
			if err != nil {
				refused = append(refused, fmt.Errorf("memory by process: GPU %d: %w", card.minor, err))
				break
			}
			known = true
			for i, size := range sizes {
				if size > 0 {
					found[part[i]] = append(found[part[i]], Memory{Minor: card.minor, Bytes: size})
				}
			}
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("memory by process: %w", err)
	case !known && len(pids) > 0:
		return nil, errors.Join(append(refused, errors.New("memory by process: no GPU can be opened"))...)
	}
	return found, nil
}

// client is a conversation with the driver. What it makes ends with its descriptors.
type client struct {
	sys  system
	abi  *rm.ABI
	ctl  int
	fds  []int
	root uint32
	next uint32
}

func (c *client) close() {
	for _, fd := range slices.Backward(c.fds) {
		_ = c.sys.close(fd) // which has nothing to lose
	}
}

func (c *client) open(node string) (int, error) {
	fd, err := c.sys.open(node)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", node, err)
	}
	c.fds = append(c.fds, fd)
	return fd, nil
}

// connect learns the driver's release, and makes a client.
func (c *client) connect() (err error) {
	if c.ctl, err = c.open(controlNode); err != nil {
		return err
	}
	greeting, err := c.record("nv_ioctl_rm_api_version_t", fields{"cmd": '2'}) // NV_RM_API_VERSION_CMD_QUERY
	if err != nil {
		return err
	}
	if err := c.sys.ioctl(c.ctl, rm.EscCheckVersionStr, greeting.b); err != nil {
		return fmt.Errorf("NV_ESC_CHECK_VERSION_STR: %w", err)
	}
	at, m, ok := greeting.layout.Find("versionString")
	if !ok {
		return errors.New("the driver's release: no member versionString")
	}
	release, _, _ := bytes.Cut(greeting.b[at:at+m.Size], []byte{0})
	v, err := rm.ParseVersion(string(release))
	if err != nil {
		return fmt.Errorf("the driver's release: %w", err)
	}
	c.abi = rm.Load(v)
	root, err := c.class("NV01_ROOT_CLIENT")
	if err != nil {
		return err
	}
	r, err := c.record("NVOS21_PARAMETERS", fields{"hClass": uint64(root.ID)})
	if err != nil {
		return err
	}
	if err := c.escape(c.ctl, rm.EscRMAlloc, "NV_ESC_RM_ALLOC "+root.Name, r); err != nil {
		return err
	}
	c.root = uint32(r.get("hObjectNew"))
	return nil
}

// A card is a GPU that the driver has.
type card struct {
	minor int
	id    uint64
}

func (c *client) cards() (list []card, err error) {
	layout := c.abi.Struct("nv_ioctl_card_info_t")
	if layout == nil {
		return nil, c.lacks("structure nv_ioctl_card_info_t")
	}
	b := make([]byte, maxCards*layout.Size)
	if err := c.sys.ioctl(c.ctl, rm.EscCardInfo, b); err != nil {
		return nil, fmt.Errorf("NV_ESC_CARD_INFO: %w", err)
	}
	for ; len(b) > 0; b = b[layout.Size:] {
		if r := (record{layout, b}); r.get("valid") != 0 {
			list = append(list, card{int(r.get("minor_number")), r.get("gpu_id")})
		}
	}
	return list, nil
}

// memory asks for the memory of processes, maxPIDs at most.
func (c *client) memory(of card, pids []int) (sizes []uint64, err error) {
	fd, err := c.open(fmt.Sprintf("/dev/nvidia%d", of.minor))
	if err != nil {
		return nil, err
	}
	r, err := c.record("nv_ioctl_register_fd_t", fields{"ctl_fd": uint64(c.ctl)})
	if err != nil {
		return nil, err
	}
	if err := c.escape(fd, rm.EscRegisterFD, "NV_ESC_REGISTER_FD", r); err != nil {
		return nil, err
	}
	if _, err := c.control(c.root, "NV0000_CTRL_CMD_GPU_ATTACH_IDS", fields{"gpuIds[0]": of.id, "gpuIds[1]": 0xffffffff}); err != nil {
		return nil, err
	}
	id, err := c.control(c.root, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", fields{"gpuId": of.id})
	if err != nil {
		return nil, err
	}
	device, err := c.alloc(c.root, "NV01_DEVICE_0", fields{"deviceId": id.get("deviceInstance"), "hClientShare": uint64(c.root)})
	if err != nil {
		return nil, err
	}
	subdevice, err := c.alloc(device, "NV20_SUBDEVICE_0", fields{"subDeviceId": id.get("subDeviceInstance")})
	if err != nil {
		return nil, err
	}
	wanted := fields{"pidInfoListCount": uint64(len(pids))}
	for i, pid := range pids { // index 0 is the memory
		wanted[fmt.Sprintf("pidInfoList[%d].pid", i)] = uint64(pid)
	}
	info, err := c.control(subdevice, "NV2080_CTRL_CMD_GPU_GET_PID_INFO", wanted)
	if err != nil {
		return nil, err
	}
	for i := range pids {
		of := fmt.Sprintf("pidInfoList[%d].", i)
		if _, _, ok := info.layout.Find(of + "data.vidMemUsage.memPrivate"); !ok {
			return nil, c.lacks("member vidMemUsage.memPrivate")
		}
		size := uint64(0)
		if info.get(of+"result") == 0 {
			size = info.get(of+"data.vidMemUsage.memPrivate") + info.get(of+"data.vidMemUsage.memSharedOwned")
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

func (c *client) lacks(what string) error {
	return fmt.Errorf("driver %v has no %s (by the tables of %v)", c.abi.Asked(), what, c.abi.Version())
}

func (c *client) class(name string) (*rm.Class, error) {
	for class := range c.abi.Classes() {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, c.lacks("class " + name)
}

// escape does an ioctl whose structure has a status.
func (c *client) escape(fd int, nr uint32, what string, r record) error {
	if err := c.sys.ioctl(fd, nr, r.b); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if status := rm.Status(r.get("status")); status != 0 {
		return fmt.Errorf("%s: %v", what, status)
	}
	return nil
}

// alloc makes an object under another one.
func (c *client) alloc(parent uint32, name string, f fields) (uint32, error) {
	class, err := c.class(name)
	if err != nil {
		return 0, err
	}
	params := record{class.Alloc, make([]byte, class.Alloc.Size)}
	params.set(f)
	var pin runtime.Pinner
	defer pin.Unpin()
	c.next++
	object := c.next
	r, err := c.record("NVOS21_PARAMETERS", fields{
		"hRoot": uint64(c.root), "hObjectParent": uint64(parent), "hObjectNew": uint64(object), "hClass": uint64(class.ID),
		"pAllocParms": address(&pin, params.b), "paramsSize": uint64(len(params.b)),
	})
	if err != nil {
		return 0, err
	}
	return object, c.escape(c.ctl, rm.EscRMAlloc, "NV_ESC_RM_ALLOC "+name, r)
}

// control calls a method of an object.
func (c *client) control(object uint32, command string, f fields) (record, error) {
	for each := range c.abi.Controls() {
		if each.Name != command || each.Params == nil {
			continue
		}
		params := record{each.Params, make([]byte, each.Params.Size)}
		params.set(f)
		var pin runtime.Pinner
		defer pin.Unpin()
		r, err := c.record("NVOS54_PARAMETERS", fields{
			"hClient": uint64(c.root), "hObject": uint64(object), "cmd": uint64(each.Cmd),
			"params": address(&pin, params.b), "paramsSize": uint64(len(params.b)),
		})
		if err != nil {
			return record{}, err
		}
		return params, c.escape(c.ctl, rm.EscRMControl, "NV_ESC_RM_CONTROL "+command, r)
	}
	return record{}, c.lacks("command " + command)
}

// A record is one of the driver's structures, as the running release lays it out.
type record struct {
	layout *rm.Struct
	b      []byte
}

// fields are numbers in a record, by their path: a.b[3].
type fields map[string]uint64

func (c *client) record(name string, f fields) (record, error) {
	layout := c.abi.Struct(name)
	if layout == nil {
		return record{}, c.lacks("structure " + name)
	}
	r := record{layout, make([]byte, layout.Size)}
	r.set(f)
	return r, nil
}

// set writes members; what this release's structure has not is left out.
func (r record) set(f fields) {
	for path, v := range f {
		if at, m, ok := r.layout.Find(path); ok {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], v)
			copy(r.b[at:at+m.Elem], word[:])
		}
	}
}

// get reads a number; one that this release's structure has not is 0.
func (r record) get(path string) uint64 {
	var word [8]byte
	if at, m, ok := r.layout.Find(path); ok {
		copy(word[:], r.b[at:at+m.Elem])
	}
	return binary.LittleEndian.Uint64(word[:])
}
