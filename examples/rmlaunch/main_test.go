package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/fatbin/sass"
	"nvtrace/internal/need"
	"nvtrace/rm"
	"nvtrace/rm/channel"
)

// gpus are the architectures, each with the newest channel class of its GPUs.
var gpus = []struct {
	arch                     string
	fifo, compute, smVersion uint32
}{
	{"sm_75", 0xc46f, 0xc5c0, 0x705},
	{"sm_80", 0xc56f, 0xc6c0, 0x800},
	{"sm_86", 0xc56f, 0xc7c0, 0x806},
	{"sm_89", 0xc56f, 0xc9c0, 0x809},
	{"sm_90", 0xc86f, 0xcbc0, 0x900},
	{"sm_100", 0xc96f, 0xcdc0, 0xa00},
	{"sm_120", 0xca6f, 0xcec0, 0xa04},
}

const aDriver = "580.142"

func TestLaunch(t *testing.T) {
	for _, g := range gpus {
		for _, n := range []int{1, 255, 256, 257, 100_000} {
			f := newFake(t, aDriver, g.fifo, g.compute, g.smVersion)
			var out, log bytes.Buffer
			if err := run(f, []string{"-v", "-n", strconv.Itoa(n)}, &out, &log); err != nil {
				t.Fatalf("%s, %d elements: %v\n%s", g.arch, n, err, &log)
			}
			if want := strconv.Itoa(n) + " elements are right"; !strings.Contains(out.String(), want) || !strings.Contains(out.String(), g.arch+",") {
				t.Errorf("%s: %q", g.arch, &out)
			}
			if err := f.left(); err != nil {
				t.Errorf("%s: %v", g.arch, err)
			}
			k, err := kernelFor(uint16(g.compute))
			if err != nil {
				t.Fatal(err)
			}
			if len(f.launches) != 1 || f.releases != 1 {
				t.Fatalf("%s: %d launches, %d releases", g.arch, len(f.launches), f.releases)
			}
			l := f.launches[0]
			if l.Block != [3]uint32{256, 1, 1} || l.Grid != [3]uint32{uint32(n+255) / 256, 1, 1} || l.Registers < uint32(k.Registers) {
				t.Errorf("%s: %+v", g.arch, l)
			}
			if !bytes.Equal(f.program, k.code) {
				t.Errorf("%s: the program isn't the cubin's", g.arch)
			}
			if !strings.Contains(log.String(), "launch vectorAdd") || !strings.Contains(log.String(), "NV_ESC_RM_ALLOC NV01_DEVICE_0 = NV_OK") {
				t.Errorf("%s: -v says\n%s", g.arch, &log)
			}
		}
	}
}

// TestReleases runs it on drivers whose structures differ.
func TestReleases(t *testing.T) {
	for _, version := range []string{"525.147.05", "535.43.02", "535.129.03", "550.163.01", "570.211.01", "580.65.06", "590.48.01", "595.45.04"} {
		f := newFake(t, version, 0xc86f, 0xcbc0, 0x900)
		var out bytes.Buffer
		if err := run(f, nil, &out, io.Discard); err != nil {
			t.Errorf("%s: %v", version, err)
		}
		if !strings.HasPrefix(out.String(), "driver "+version+",") {
			t.Errorf("%s: %q", version, &out)
		}
		if err := f.left(); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// TestFailures: whatever fails is said, and all else is given back.
func TestFailures(t *testing.T) {
	for what, want := range map[behaviour]string{
		sleeps:    "the GPU has not come to the semaphore in 50ms: of the ring 0 of 1 entries are fetched",
		errs:      "the driver stopped the channel: error 31 (Xid), status 0xffff",
		addsWrong: "element 50000 is ",
		faults:    "element 1 is 0, not 1.5\nthe driver stopped the channel: error 31 (Xid), status 0xffff",
	} {
		f := newFake(t, aDriver, 0xc86f, 0xcbc0, 0x900)
		f.behaviour = what
		var out bytes.Buffer
		err := run(f, []string{"-wait", "50ms"}, &out, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() != 0 {
			t.Errorf("behaviour %d: %v, printed %q", what, err, &out)
		}
		if err := f.left(); err != nil {
			t.Errorf("behaviour %d: %v", what, err)
		}
	}
	for _, call := range []string{
		"/dev/nvidiactl", "/dev/nvidia0", "NV01_ROOT_CLIENT", "ATTACH_IDS", "ID_INFO", "NV01_DEVICE_0", "NV20_SUBDEVICE_0", "CLASSLIST",
		"GR_GET_INFO", "USERMODE", "NV_ESC_RM_MAP_MEMORY_DMA", "FERMI_VASPACE_A", "NV01_MEMORY_VIRTUAL", "NV01_MEMORY_LOCAL_USER", "NV01_MEMORY_SYSTEM",
		"KEPLER_CHANNEL_GROUP_A", "FERMI_CONTEXT_SHARE_A", "CHANNEL_GPFIFO", "COMPUTE", "SUBMIT_TOKEN", "SCHEDULE",
	} {
		f := newFake(t, aDriver, 0xc86f, 0xcbc0, 0x900)
		f.refuse = call
		var out bytes.Buffer
		err := run(f, nil, &out, io.Discard)
		if err == nil || !strings.Contains(err.Error(), call) || out.Len() != 0 {
			t.Errorf("%s refused: %v, printed %q", call, err, &out)
		}
		if err := f.left(); err != nil {
			t.Errorf("%s refused: %v", call, err)
		}
	}
}

// TestOldGPU: a GPU without a class that is known is no crash.
func TestOldGPU(t *testing.T) {
	f := newFake(t, aDriver, 0xc36f, 0xc3c0, 0x700)
	if err := run(f, nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "compute class c3c0") {
		t.Error(err)
	}
	if err := f.left(); err != nil {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-n", "0"}, {"-n", "100000000"}, {"what"}, {"-bogus"}, {"-gpu", "7"}} {
		var out, diag bytes.Buffer
		f := newFake(t, aDriver, 0xc86f, 0xcbc0, 0x900)
		if err := run(f, args, &out, &diag); err == nil || out.Len() != 0 {
			t.Errorf("run(%v) = %v, printed %q", args, err, &out)
		}
		if err := f.left(); err != nil {
			t.Errorf("run(%v): %v", args, err)
		}
	}
}

func TestNoDriver(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has a driver")
	}
	if err := run(linux{}, nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "/dev/nvidiactl") {
		t.Errorf("without a driver: %v", err)
	}
}

// TestConstants: each word of constant bank 0 that the machine code reads is one that the program
// writes, or the descriptor of global memory, which libcuda leaves zero.
func TestConstants(t *testing.T) {
	descriptors := []int{0x118, 0x208, 0x358}
	reads := regexp.MustCompile(`c\[(?:0x)?0\]\[(?:0x)?([0-9a-f]+|RZ)\]`)
	for _, g := range gpus {
		k, err := kernelFor(uint16(g.compute))
		if err != nil {
			t.Fatal(err)
		}
		if k.arch != g.arch {
			t.Errorf("class %04x has the code of %s, not %s", g.compute, k.arch, g.arch)
		}
		arch, err := sass.ParseArch(k.arch)
		if err != nil {
			t.Fatal(err)
		}
		l := channel.Launch{Grid: [3]uint32{0x5001, 0x5002, 0x5003}, Block: [3]uint32{0x6001, 0x6002, 0x6003}}
		b, err := k.constants(&l, uint64(1)<<40|1, uint64(2)<<40|1, uint64(3)<<40|1, uint32(4))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for _, w := range sass.Words(k.code) {
			i, ok := sass.Decode(arch, w)
			if !ok {
				t.Fatalf("%s: unknown code", g.arch)
			}
			for _, m := range reads.FindAllStringSubmatch(i.String(), -1) {
				at, _ := strconv.ParseInt(strings.Replace(m[1], "RZ", "0", 1), 16, 32)
				seen[int(at)] = true
				if slices.Contains(descriptors, int(at)) {
					continue
				}
				if int(at)+4 > len(b) || binary.LittleEndian.Uint32(b[at:]) == 0 {
					t.Errorf("%s: %v reads what the program doesn't write", g.arch, i.String())
				}
			}
		}
		if len(seen) < 5 { // the block's size and four arguments, at least
			t.Errorf("%s: the code reads %v of the constants", g.arch, seen)
		}
		at := bank0Of(k).blockDim
		if !seen[at] || binary.LittleEndian.Uint32(b[at:]) != 0x6001 {
			t.Errorf("%s: the block's size isn't read at %#x", g.arch, at)
		}
		if _, err := k.constants(&l, uint64(1)); err == nil {
			t.Errorf("%s: one argument is enough", g.arch)
		}
		if _, err := k.constants(&l, uint64(1), uint64(1), uint64(1), uint64(1)); err == nil {
			t.Errorf("%s: an argument of the wrong size is taken", g.arch)
		}
	}
}

// TestRecordedQMD holds a QMD for the launch that an H200 was seen to run against the one that libcuda
// wrote for it: the fields in which they differ, and why, are these.
func TestRecordedQMD(t *testing.T) {
	seen := map[string]uint64{ // rm/channel/write_test.go has all of it
		"QMD_GROUP_ID": 0x3f, "QMD_TYPE": 2, "QMD_MAJOR_VERSION": 4, "SASS_VERSION": 0x90, "API_VISIBLE_CALL_LIMIT": 1, "SAMPLER_INDEX": 1,
		"SHARED_MEMORY_SIZE": 0x400, "INVALIDATE_TEXTURE_HEADER_CACHE": 1, "INVALIDATE_TEXTURE_SAMPLER_CACHE": 1,
		"INVALIDATE_TEXTURE_DATA_CACHE": 1, "INVALIDATE_SHADER_DATA_CACHE": 1, "INVALIDATE_SHADER_CONSTANT_CACHE": 1,
		"MIN_SM_CONFIG_SHARED_MEM_SIZE": 9, "TARGET_SM_CONFIG_SHARED_MEM_SIZE": 9, "GRID_WIDTH": 0x135, "GRID_HEIGHT": 3, "GRID_DEPTH": 2,
		"CWD_MEMBAR_TYPE": 1, "CTA_THREAD_DIMENSION0": 0x2a, "CTA_THREAD_DIMENSION1": 1, "CTA_THREAD_DIMENSION2": 1, "REGISTER_COUNT": 0x10,
		"BARRIER_COUNT": 1, "PROGRAM_ADDRESS_LOWER": 0xa77a0000, "PROGRAM_ADDRESS_UPPER": 0x7feb, "CONSTANT_BUFFER_VALID": 1,
		"CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6": 0xae996c00, "CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6": 0x1ff,
	}
	k, err := kernelFor(0xcbc0)
	if err != nil {
		t.Fatal(err)
	}
	q, err := k.qmd(channel.ClassOf(0xcbc0), 0x900, channel.Launch{
		Program: 0x7feba77a0000, Grid: [3]uint32{0x135, 3, 2}, Block: [3]uint32{0x2a, 1, 1}, Registers: 16, SharedMemory: 0x400,
		Constants: 0x7feba65b0000, ConstantSize: 0x230,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range seen {
		if v, ok := q.Get(name); !ok || v != want {
			t.Errorf("%s is %#x, libcuda's %#x", name, v, want)
		}
	}
}

func TestRecord(t *testing.T) {
	abi := rm.Newest()
	layout := abi.Struct("NV_MEMORY_ALLOCATION_PARAMS")
	r := newRecord(layout)
	for _, wrong := range []fields{
		{"nothing": 1},
		{"size.of": 1},
		{"size[1]": 1},
		{"attr": "LOCATION=MOON"},
		{"attr": "NOWHERE=PCI"},
		{"owner": "ME"},
		{"size": 1.5},
		{"size": make([]byte, 9)},
	} {
		if err := r.set(wrong); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
	if err := r.set(fields{"attr": "LOCATION=PCI|COHERENCY=CACHED", "size": uint64(1) << 33}); err != nil {
		t.Fatal(err)
	}
	if v, err := r.get("attr"); err != nil || v != 1<<25|1<<29 {
		t.Errorf("attr %#x, %v", v, err)
	}
	if v, err := r.get("size"); err != nil || v != 1<<33 {
		t.Errorf("size %#x, %v", v, err)
	}
}

// TestBuild: the cubins are those that kernel/build.sh makes.
func TestBuild(t *testing.T) {
	ptxas := need.Tool(t, "ptxas", "NVTRACE_PTXAS")
	for _, g := range gpus {
		out := filepath.Join(t.TempDir(), "out.cubin")
		if b, err := exec.Command(ptxas, "-arch="+g.arch, "-o", out, "kernel/vectoradd.ptx").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		made, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := os.ReadFile("kernel/" + g.arch + ".cubin")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(made, stored) {
			t.Errorf("%s.cubin isn't what ptxas makes", g.arch)
		}
	}
}
