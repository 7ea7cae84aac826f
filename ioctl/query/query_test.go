package query

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvtrace/rm"
)

// fake is a driver with two GPUs, of which one can't be opened here, and with a process that has memory.
type fake struct {
	t       *testing.T
	abi     *rm.ABI
	version string
	refuse  string // a command that fails
	fds     int
	objects map[uint64]string
	opened  map[int]bool
}

func (f *fake) open(path string) (int, error) {
	if path != controlNode && path != "/dev/nvidia1" {
		return -1, unix.EACCES
	}
	f.fds++
	f.opened[f.fds] = true
	return f.fds, nil
}

func (f *fake) close(fd int) error {
	delete(f.opened, fd)
	return nil
}

// pointed is what a structure points to.
func pointed(address, size uint64) []byte {
	p := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	return unsafe.Slice((*byte)(p), size)
}

func (f *fake) ioctl(_ int, nr uint32, arg []byte) error {
	in := func(name string) record { return record{f.abi.Struct(name), arg} }
	switch nr {
	case rm.EscCheckVersionStr:
		at, _, _ := in("nv_ioctl_rm_api_version_t").layout.Find("versionString")
		copy(arg[at:], f.version)
	case rm.EscCardInfo:
		layout := f.abi.Struct("nv_ioctl_card_info_t")
		for i := range 2 {
			record{layout, arg[i*layout.Size:]}.set(fields{"valid": 1, "minor_number": uint64(i), "gpu_id": uint64(0x100 + i)})
		}
	case rm.EscRegisterFD:
	case rm.EscRMAlloc:
		r := in("NVOS21_PARAMETERS")
		class := f.abi.Class(uint32(r.get("hClass")))
		parents := map[string]string{"NV01_ROOT_CLIENT": "", "NV01_DEVICE_0": "NV01_ROOT_CLIENT", "NV20_SUBDEVICE_0": "NV01_DEVICE_0"}
		if want, ok := parents[class.Name]; !ok || f.objects[r.get("hObjectParent")] != want {
			f.t.Errorf("%s under %q", class.Name, f.objects[r.get("hObjectParent")])
		}
		if class.Name == "NV01_ROOT_CLIENT" {
			r.set(fields{"hObjectNew": 0xc1d00001})
		}
		f.objects[r.get("hObjectNew")] = class.Name
	case rm.EscRMControl:
		r := in("NVOS54_PARAMETERS")
		c := f.abi.Control(uint32(r.get("cmd")))
		if c.Name == f.refuse {
			r.set(fields{"status": 0x1b})
			return nil
		}
		f.control(c, f.objects[r.get("hObject")], record{c.Params, pointed(r.get("params"), r.get("paramsSize"))})
	default:
		return unix.EINVAL
	}
	return nil
}

func (f *fake) control(c *rm.Control, of string, r record) {
	switch c.Name {
	case "NV0000_CTRL_CMD_GPU_ATTACH_IDS", "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2":
	case "NV2080_CTRL_CMD_GPU_GET_PID_INFO":
		if of != "NV20_SUBDEVICE_0" || r.get("pidInfoListCount") != 2 || r.get("pidInfoList[0].pid") != 7 || r.get("pidInfoList[1].pid") != 8 {
			f.t.Errorf("of %s: %d processes, %d, %d", of, r.get("pidInfoListCount"), r.get("pidInfoList[0].pid"), r.get("pidInfoList[1].pid"))
		}
		r.set(fields{
			"pidInfoList[0].data.vidMemUsage.memPrivate": 5 << 30, "pidInfoList[0].data.vidMemUsage.memSharedOwned": 1 << 20,
			"pidInfoList[0].data.vidMemUsage.memSharedDuped": 1 << 40,
		})
	default:
		f.t.Errorf("%s", c.Name)
	}
}

func fakeOf(t *testing.T, version string) *fake {
	v, err := rm.ParseVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	return &fake{t: t, abi: rm.Load(v), version: version, objects: map[uint64]string{}, opened: map[int]bool{}}
}

// TestMemoryOf wants the memory of a process on the GPU that can be opened, with the layouts of several releases.
func TestMemoryOf(t *testing.T) {
	for _, version := range []string{"525.60.13", "550.54.14", "580.142"} {
		f := fakeOf(t, version)
		got, err := memoryOf(f, []int{7, 8})
		want := map[int][]Memory{7: {{Minor: 1, Bytes: 5<<30 + 1<<20}}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", version, got, err, want)
		}
		if len(f.opened) != 0 {
			t.Errorf("%s: left open: %v", version, f.opened)
		}
	}
}

// TestRefused wants the reason where the driver does not tell.
func TestRefused(t *testing.T) {
	f := fakeOf(t, "580.142")
	f.refuse = "NV2080_CTRL_CMD_GPU_GET_PID_INFO"
	if got, err := memoryOf(f, []int{7, 8}); err == nil || !strings.Contains(err.Error(), "GPU 1: NV_ESC_RM_CONTROL NV2080_CTRL_CMD_GPU_GET_PID_INFO: ") {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := MemoryOf([]int{1}); err == nil && len(got) > 0 { // as on a machine without a driver, or with one
		t.Logf("process 1 has memory of a GPU: %v", got)
	} else if err != nil && !errors.Is(err, unix.ENOENT) && !strings.Contains(err.Error(), "memory by process: ") {
		t.Error(err)
	}
}
