package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// client is one conversation with the driver: the control node and a root
// client object on it. It is for one goroutine.
type client struct {
	ctl     int    // descriptor of /dev/nvidiactl
	root    uint32 // the root client's handle, chosen by the driver
	next    uint32 // last handle that we chose
	version string
	release release
	mem     *arena
}

// statusError is a status of the resource manager other than NV_OK.
type statusError uint32

func (s statusError) Error() string { return statusName(uint32(s)) }

// open opens the control node, greets the driver and makes a root client.
func open() (*client, error) {
	mem, err := newArena()
	if err != nil {
		return nil, err
	}
	c := &client{ctl: -1, mem: mem, next: 0x5e000000}
	c.ctl, err = unix.Open("/dev/nvidiactl", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		c.mem.free()
		return nil, fmt.Errorf("open /dev/nvidiactl (is the driver loaded, is the node in this container?): %w", err)
	}
	if err := c.handshake(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// handshake learns the driver's release and makes the root client.
func (c *client) handshake() error {
	c.mem.reset()
	v := alloc[apiVersion](c.mem)
	v.Cmd = versionQuery
	if err := ioctlF(c.ctl, escCheckVersion, v); err != nil {
		return fmt.Errorf("NV_ESC_CHECK_VERSION_STR: %w", err)
	}
	c.version = text(v.Version[:])
	if c.version == "" { // a release that knows the call but not the question
		c.version = moduleVersion()
	}
	var err error
	if c.release, err = parseRelease(c.version); err != nil {
		return fmt.Errorf("NV_ESC_CHECK_VERSION_STR: reply %d: %w", v.Reply, err)
	}

	p := alloc[sysParams](c.mem)
	p.MemblockSize = memoryBlockSize()
	if err := ioctlF(c.ctl, escSysParams, p); err != nil {
		return fmt.Errorf("NV_ESC_SYS_PARAMS: %w", err)
	}

	a := alloc[allocParams](c.mem)
	a.Class = classRootClient
	if err := escape(c.ctl, escAlloc, a, a.status(c.release)); err != nil {
		return fmt.Errorf("NV_ESC_RM_ALLOC NV01_ROOT_CLIENT: %w", err)
	}
	c.root = a.New
	return nil
}

// close frees the root client, if there is one, and the control node.
func (c *client) close() error {
	var errs []error
	if c.root != 0 {
		errs = append(errs, c.free("NV01_ROOT_CLIENT", c.root, 0, c.root))
	}
	if c.ctl >= 0 {
		if err := unix.Close(c.ctl); err != nil {
			errs = append(errs, fmt.Errorf("close /dev/nvidiactl: %w", err))
		}
	}
	c.mem.free()
	return errors.Join(errs...)
}

// escape does an ioctl whose structure has a status member.
func escape[T any](fd int, nr uint32, arg *T, status *uint32) error {
	if err := ioctlF(fd, nr, arg); err != nil {
		return err
	}
	if *status != 0 {
		return statusError(*status)
	}
	return nil
}

// cards asks for the machine's cards.
func (c *client) cards() (*[maxGPUs]cardInfo, error) {
	cards := alloc[[maxGPUs]cardInfo](c.mem)
	if err := ioctlF(c.ctl, escCardInfo, cards); err != nil {
		return nil, fmt.Errorf("NV_ESC_CARD_INFO: %w", err)
	}
	return cards, nil
}

// allocObject makes an object under parent and returns its handle.
func allocObject[T any](c *client, name string, parent, class uint32, params *T) (uint32, error) {
	c.next++
	a := alloc[allocParams](c.mem)
	*a = allocParams{Root: c.root, Parent: parent, New: c.next, Class: class}
	a.Params, a.ParamsSize = addrSize(params)
	if err := escape(c.ctl, escAlloc, a, a.status(c.release)); err != nil {
		return 0, fmt.Errorf("NV_ESC_RM_ALLOC %s: %w", name, err)
	}
	return a.New, nil
}

// free frees the object h, a child of parent.
func (c *client) free(name string, root, parent, h uint32) error {
	f := alloc[freeParams](c.mem)
	*f = freeParams{Root: root, Parent: parent, Old: h}
	if err := escape(c.ctl, escFree, f, &f.Status); err != nil {
		return fmt.Errorf("NV_ESC_RM_FREE %s %#x: %w", name, h, err)
	}
	return nil
}

// control does a control of the object.
func control[T any](c *client, name string, object, cmd uint32, params *T) error {
	p := alloc[controlParams](c.mem)
	*p = controlParams{Client: c.root, Object: object, Cmd: cmd}
	var size uint32
	p.Params, size = addrSize(params)
	p.ParamsSize = paramsSize(c.release, cmd, size)
	if err := escape(c.ctl, escControl, p, &p.Status); err != nil {
		return fmt.Errorf("NV_ESC_RM_CONTROL %s: %w", name, err)
	}
	return nil
}

// text is the string that b holds up to its first NUL.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// parseRelease reads "580.159.04" or "555.58".
func parseRelease(s string) (release, error) {
	var r release
	parts := strings.Split(s, ".")
	if len(parts) < 2 || len(parts) > len(r) {
		return r, fmt.Errorf("%q is not a driver version", s)
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return r, fmt.Errorf("%q is not a driver version", s)
		}
		r[i] = n
	}
	return r, nil
}

// moduleVersion is the kernel module's version as it says itself, or "".
func moduleVersion() string {
	b, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// memoryBlockSize returns the size of the machine's hotpluggable memory blocks,
// all ones where it has none. The driver keeps the first value that it is told,
// libcuda's being this one, and answers EBUSY to any other (nv.c,
// NV_ESC_SYS_PARAMS).
func memoryBlockSize() uint64 {
	b, err := os.ReadFile("/sys/devices/system/memory/block_size_bytes")
	if err != nil {
		return ^uint64(0)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 16, 64)
	if err != nil {
		return ^uint64(0)
	}
	return n
}
