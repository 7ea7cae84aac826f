package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// machine is everything that one run of the sequence learns.
type machine struct {
	Driver  string   `json:"driver"`
	GPUs    []gpu    `json:"gpus"`
	Skipped []string `json:"skipped,omitempty"` // GPUs whose node can't be opened here, and why
}

// gpu is one card, by the driver's own words.
type gpu struct {
	Minor          uint32 `json:"minor"`
	Name           string `json:"name"`
	UUID           string `json:"uuid"`
	PCI            string `json:"pci"`
	VendorID       uint16 `json:"vendor_id"`
	DeviceID       uint16 `json:"device_id"`
	SubSystemID    uint32 `json:"subsystem_id"`
	GPUID          uint32 `json:"gpu_id"`
	Architecture   uint32 `json:"architecture"`
	Implementation uint32 `json:"implementation"`
	Revision       uint32 `json:"revision"`
	TotalRAM       uint64 `json:"total_ram_bytes"`
	RAM            uint64 `json:"ram_bytes"`
	Heap           uint64 `json:"heap_bytes"`
	BusWidth       uint32 `json:"bus_width_bits"`
}

// inspect runs the whole sequence once: greet, list, look at every GPU that can
// be opened here, and free everything in reverse order.
func inspect() (m machine, err error) {
	c, err := open()
	if err != nil {
		return machine{}, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	m.Driver = c.version

	probed := alloc[probedIDs](c.mem)
	if err := control(c, "NV0000_CTRL_CMD_GPU_GET_PROBED_IDS", c.root, ctrlGetProbedIDs, probed); err != nil {
		return machine{}, err
	}
	known := make(map[uint32]bool)
	for _, id := range probed.IDs {
		if id == invalidGPU {
			break
		}
		known[id] = true
	}
	list, err := c.cards()
	if err != nil {
		return machine{}, err
	}
	cards := *list // the arena is reset for each GPU
	for i := range cards {
		if cards[i].Valid == 0 || !known[cards[i].GPUID] {
			continue
		}
		g, err := c.inspectGPU(&cards[i])
		if absent, ok := errors.AsType[*absentError](err); ok {
			m.Skipped = append(m.Skipped, absent.Error())
			continue
		}
		if err != nil {
			return machine{}, fmt.Errorf("gpu %d: %w", cards[i].Minor, err)
		}
		m.GPUs = append(m.GPUs, g)
	}
	return m, nil
}

// absentError says that a GPU is in the machine but its node is not for us, as
// in a container that was given some of the GPUs.
type absentError struct {
	node string
	err  error
}

func (e *absentError) Error() string { return fmt.Sprintf("open %s: %v", e.node, e.err) }

// inspectGPU attaches one GPU, makes its device and subdevice objects, asks,
// and undoes all that.
func (c *client) inspectGPU(card *cardInfo) (g gpu, err error) {
	c.mem.reset()
	node := fmt.Sprintf("/dev/nvidia%d", card.Minor)
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return gpu{}, &absentError{node, err}
	}
	defer func() {
		if e := unix.Close(fd); e != nil {
			err = errors.Join(err, fmt.Errorf("close %s: %w", node, e))
		}
	}()
	reg := alloc[registerFD](c.mem)
	reg.CtlFD = int32(c.ctl)
	if err := ioctlF(fd, escRegisterFD, reg); err != nil {
		return gpu{}, fmt.Errorf("NV_ESC_REGISTER_FD: %w", err)
	}

	attach := alloc[attachIDs](c.mem)
	attach.IDs[0], attach.IDs[1] = card.GPUID, invalidGPU
	if err := control(c, "NV0000_CTRL_CMD_GPU_ATTACH_IDS", c.root, ctrlAttachIDs, attach); err != nil {
		return gpu{}, fmt.Errorf("%w (failed id %#x)", err, attach.Failed)
	}
	id := alloc[idInfo](c.mem)
	id.GPUID = card.GPUID
	if err := control(c, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", c.root, ctrlGetIDInfo, id); err != nil {
		return gpu{}, err
	}

	dp := alloc[deviceParams](c.mem)
	dp.DeviceID, dp.ClientShare = id.DeviceInstance, c.root
	dev, err := allocObject(c, "NV01_DEVICE_0", c.root, classDevice, dp)
	if err != nil {
		return gpu{}, err
	}
	defer func() { err = errors.Join(err, c.free("NV01_DEVICE_0", c.root, c.root, dev)) }()
	sp := alloc[subdeviceParams](c.mem)
	sp.SubDeviceID = id.SubDeviceInstance
	sub, err := allocObject(c, "NV20_SUBDEVICE_0", dev, classSubdevice, sp)
	if err != nil {
		return gpu{}, err
	}
	defer func() { err = errors.Join(err, c.free("NV20_SUBDEVICE_0", c.root, dev, sub)) }()

	g = gpu{
		Minor:    card.Minor,
		GPUID:    card.GPUID,
		VendorID: card.PCI.Vendor,
		DeviceID: card.PCI.Device,
		PCI:      fmt.Sprintf("%04x:%02x:%02x.%x", card.PCI.Domain, card.PCI.Bus, card.PCI.Slot, card.PCI.Function),
	}
	err = c.ask(sub, &g)
	return g, err
}

// ask fills g from the subdevice's controls.
func (c *client) ask(sub uint32, g *gpu) error {
	name := alloc[nameString](c.mem)
	if err := control(c, "NV2080_CTRL_CMD_GPU_GET_NAME_STRING", sub, ctrlGetNameString, name); err != nil {
		return err
	}
	g.Name = text(name.Name[:])

	gid := alloc[gidInfo](c.mem)
	if err := control(c, "NV2080_CTRL_CMD_GPU_GET_GID_INFO", sub, ctrlGetGIDInfo, gid); err != nil {
		return err
	}
	g.UUID = text(gid.Data[:min(int(gid.Length), len(gid.Data))])

	arch := alloc[archInfo](c.mem)
	if err := control(c, "NV2080_CTRL_CMD_MC_GET_ARCH_INFO", sub, ctrlGetArchInfo, arch); err != nil {
		return err
	}
	g.Architecture, g.Implementation, g.Revision = arch.Architecture, arch.Implementation, arch.Revision

	pci := alloc[busPCIInfo](c.mem)
	if err := control(c, "NV2080_CTRL_CMD_BUS_GET_PCI_INFO", sub, ctrlGetPCIInfo, pci); err != nil {
		return err
	}
	g.SubSystemID = pci.SubSystemID

	fb := alloc[fbInfo](c.mem)
	for i, index := range []uint32{fbTotalRAMSize, fbRAMSize, fbHeapSize, fbBusWidth} {
		fb.List[i].Index = index
		fb.Count++
	}
	if err := control(c, "NV2080_CTRL_CMD_FB_GET_INFO_V2", sub, ctrlGetFBInfo, fb); err != nil {
		return err
	}
	g.TotalRAM = uint64(fb.List[0].Data) << 10
	g.RAM = uint64(fb.List[1].Data) << 10
	g.Heap = uint64(fb.List[2].Data) << 10
	g.BusWidth = fb.List[3].Data
	return nil
}
