package nvattach

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
)

// gpuBase is where testdata/gpurun puts the maps.
const gpuBase = 0x7e00_0000_0000

// recorder is a Memory that notes what is written.
type recorder struct{ lines []string }

func (*recorder) ReadMem(addr uint64, buf []byte) error { clear(buf); return nil }

func (r *recorder) WriteMem(addr uint64, buf []byte) error {
	if len(buf) <= 1000 {
		r.lines = append(r.lines, fmt.Sprintf("write %d %s", addr-gpuBase, hex.EncodeToString(buf)))
	}
	return nil
}

// TestWriteGPUFiles writes what testdata/gpurun/gpurun.c runs on a GPU to the folders
// small (1,048,576 threads) and large (16,777,216) below $NVTRACE_GPU_FILES.
func TestWriteGPUFiles(t *testing.T) {
	dir := os.Getenv("NVTRACE_GPU_FILES")
	if dir == "" {
		t.Skip("NVTRACE_GPU_FILES names no folder")
	}
	for name, threads := range map[string]uint64{"small": 1 << 20, "large": 1 << 24} {
		writeGPUFiles(t, filepath.Join(dir, name), threads)
	}
}

// gpuCases are programs of the test objects, and what one launch makes of the words
// of a map for each thread (of an array: of all its copies; sums of 0 are not checked),
// or for two threads, with "/2" behind its name.
var gpuCases = []struct {
	name, testObject string
	programs         []string
	sums             map[string]uint64
}{
	{"entry_count", "example_count", []string{"on_entry"}, map[string]uint64{"threads": 1}},
	{"entry_exit_count", "example_count", nil, map[string]uint64{"threads": 2}},
	{"duration_hist", "example_duration", nil, map[string]uint64{"cycles_hist": 1}},
	{"per_thread", "bpftime", []string{"cuda__threads"}, map[string]uint64{"per_thread": 1}},
	{"mem_capture", "bpftime", []string{"cuda__accesses"}, map[string]uint64{"shared": 3}},
	{"mem_kinds", "example_memory", nil, map[string]uint64{"size_hist": 3, "accesses": 15}},
	{"blocks", "example_blocks", []string{"on_block"}, map[string]uint64{"block_runs": 2}},
	{"global_loads", "example_blocks", []string{"on_load"}, map[string]uint64{".bss": 2}},
	{"hash_one", "hashes", []string{"count_one"}, map[string]uint64{"one": 1}},
	{"hash_many", "hashes", []string{"count_many"}, nil},
	{"array_many", "hashes", []string{"array_many"}, map[string]uint64{"stats/2": 2 + 255 + 6<<32}},
	{"array_replace", "hashes", []string{"array_replace"}, nil},
	{"hash_anyway", "hashes", []string{"count_anyway"}, map[string]uint64{"anyway": 1}},
	{"hash_first", "hashes", []string{"count_first"}, map[string]uint64{"firsts": 1}},
	{"changes", "races", []string{"change", "used"}, map[string]uint64{"half": 1}},
	{"hash_replace", "hashes", []string{"replace"}, nil},
	{"tell_count", "hashes", []string{"tell_count"}, map[string]uint64{"counted": 1}},
	{"hash_same", "hashes", []string{"replace_same"}, nil},
	{"hash_longer", "hashes", []string{"replace_longer"}, nil},
	{"hash_live", "hashes", []string{"live_*"}, map[string]uint64{"hist": 1, "results": 1}},
	{"duration_sum", "hashes", []string{"sum_*"}, nil},
	{"counts", "bpftime", []string{"cuda__counts"}, map[string]uint64{"mapped": 1, "host_shared": 1}},
	{"warp_trace", "example_trace", nil, nil},
	{"value_log", "params", []string{"on_access"}, nil},
	{"array_update", "rows", []string{"cuda__update"}, map[string]uint64{"updated": 1}},
	{"array_flag", "rows", []string{"cuda__flag"}, nil},
	{"mem_trace", "rows", []string{"cuda__memtrace"}, map[string]uint64{"traced": 3}},
	{"threadhist", "rows", []string{"cuda__threadhist"}, map[string]uint64{"counted": 1}},
	{"thread_store", "rows", []string{"cuda__store"}, nil},
	{"mem_records", "rows", []string{"on_access"}, nil},
}

// handCases are what someone would write by hand into vectorAdd, for grids of one row:
// the code at its entry, before each of its three accesses, and before its ends.
var handCases = []struct{ name, entry, access, end string }{
	{"hand_duration", handStart, "", handSlot + "\tred.global.add.u64 [%h1], 1;\n"},
	{"hand_duration_any", handStart, "", handSlot + "\tactivemask.b32 %g1;\n\tmatch.any.sync.b64 %g2, %h1, %g1;\n" + handLeader},
	{"hand_duration_any32", handStart, "", handSlot + "\tactivemask.b32 %g1;\n\tmatch.any.sync.b32 %g2, %g3, %g1;\n" + handLeader},
	{"hand_duration_all", handStart, "", handSlot + "\tactivemask.b32 %g1;\n\tmatch.all.sync.b32 %g2|%q1, %g3, %g1;\n\t@!%q1 mov.u32 %g2, %lanemask_eq;\n" + handLeader},
	{"hand_duration_first", handStart, "", handSlot + handFirst},
	{"hand_clocks", handStart, "", handSlot + "\tsetp.gt.u32 %q1, %g3, 60;\n\t@%q1 red.global.add.u64 [%h1], 1;\n"},
	{"hand_count", "", "", handSM + "\tred.global.add.u64 [%h1], 1;\n"},
	{"hand_threadhist", "", "", handThread(8, 0) + "\tld.global.u64 %h2, [%h1];\n\tadd.s64 %h2, %h2, 1;\n\tst.global.u64 [%h1], %h2;\n"},
	{"hand_thread_store", "", "", handThread(8, 0) + "\tmov.u64 %h2, %globaltimer;\n\tst.global.u64 [%h1], %h2;\n"},
	{"hand_mem_records", "", handThread(16, 1) + "\tmov.u64 %h2, 4294967300;\n\tst.global.v2.b64 [%h1], {ADDRESS, %h2};\n", ""},
}

// handSM puts the address of a line for each multiprocessor into %h1.
const handSM = "\tmov.u32 %g1, %smid;\n\tmul.wide.u32 %h1, %g1, 128;\n\tadd.s64 %h1, %h1, 0x7e0000000000;\n"

// handStart reads the clock at the entry; handSlot puts the address of a word for its
// binary logarithm into %h1, one of 64 for each multiprocessor, and its number into %g3.
const (
	handStart = "\t.reg .b64 %hs;\n\tmov.u64 %hs, %clock64;\n"
	handSlot  = "\tmov.u64 %h1, %clock64;\n\tsub.s64 %h1, %h1, %hs;\n\tbfind.u64 %g3, %h1;\n\tmax.s32 %g3, %g3, 0;\n" +
		"\tmov.u32 %g1, %smid;\n\tmad.lo.u32 %g1, %g1, 64, %g3;\n\tmul.wide.u32 %h1, %g1, 8;\n\tadd.s64 %h1, %h1, 0x7e0000000000;\n"
	// handLeader adds once for the threads in %g2.
	handLeader = "\tmov.u32 %g1, %lanemask_lt;\n\tand.b32 %g1, %g1, %g2;\n\tsetp.eq.u32 %q1, %g1, 0;\n" +
		"\tpopc.b32 %g1, %g2;\n\tcvt.u64.u32 %h2, %g1;\n\t@%q1 red.global.add.u64 [%h1], %h2;\n"
	// handFirst adds once for those that have the first thread's slot, and for each of the
	// others by itself.
	handFirst = "\tactivemask.b32 %g1;\n\tbrev.b32 %g2, %g1;\n\tclz.b32 %g2, %g2;\n\tshfl.sync.idx.b32 %g2, %g3, %g2, 31, %g1;\n" +
		"\tsetp.eq.u32 %q1, %g2, %g3;\n\tvote.sync.ballot.b32 %g2, %q1, %g1;\n\t@!%q1 mov.u32 %g2, %lanemask_eq;\n" + handLeader
)

// handThread puts the address of a place for each thread, or for each of its accesses,
// into %h1.
func handThread(size, accesses int) string {
	row := "0"
	if accesses > 0 {
		row = "ROW"
	}
	return fmt.Sprintf("\tmov.u32 %%g1, %%ctaid.x;\n\tmov.u32 %%g2, %%ntid.x;\n\tmov.u32 %%g3, %%tid.x;\n\tmad.lo.s32 %%g1, %%g1, %%g2, %%g3;\n"+
		"\tmul.wide.u32 %%h1, %%g1, %d;\n\tadd.s64 %%h1, %%h1, 0x7e0000000000;\n\tadd.s64 %%h1, %%h1, %s;\n", size, row)
}

// handWritten is vectorAdd with such code in it, and the bytes of memory that it takes.
func handWritten(src, entry, access, end string, threads uint64) (string, uint64) {
	var out strings.Builder
	rows := uint64(0)
	for line := range strings.Lines(src) {
		put := func(code string) {
			if code != "" {
				out.WriteString("\t{\n\t.reg .pred %q<2>;\n\t.reg .b32 %g<4>;\n\t.reg .b64 %h<3>;\n" + code + "\t}\n")
			}
		}
		code := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(code, "ld.param.u64 %rd1,"):
			out.WriteString(entry)
		case strings.Contains(code, ".global.f32"):
			addr := code[strings.IndexByte(code, '[')+1 : strings.IndexByte(code, ']')]
			put(strings.NewReplacer("ROW", fmt.Sprint(16*threads*rows), "ADDRESS", addr).Replace(access))
			rows++
		case code == "@%p1 ret;" && end != "":
			out.WriteString("\t@!%p1 bra $go;\n")
			put(end)
			out.WriteString("\tret;\n$go:\n")
			continue
		case code == "ret;":
			put(end)
		}
		out.WriteString(line)
	}
	return out.String(), max(16*threads*rows, 1<<20)
}

func writeGPUFiles(t *testing.T, dir string, threads uint64) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	src := strings.Replace(vectorAdd, "%r4, 1000;", fmt.Sprintf("%%r4, %d;", threads), 1)
	write("plain.ptx", src)
	var cases strings.Builder
	fmt.Fprintf(&cases, "base %d %d\n", uint64(gpuBase), threads)
	for _, c := range gpuCases {
		plan, err := NewPlan([]*object.Object{testObject(t, c.testObject)}, &PlanOptions{Programs: c.programs})
		if err != nil {
			t.Fatal(err)
		}
		m, err := plan.NewMaps(&mapmem.MapOptions{SMs: 132, Threads: threads, MaxBytes: 2 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Place(gpuBase); err != nil {
			t.Fatal(err)
		}
		var rec recorder
		if err := m.Init(&rec, 4711, 0); err != nil {
			t.Fatal(err)
		}
		f, err := ptx.Parse(c.name, src, nil)
		if err != nil {
			t.Fatal(err)
		}
		w, err := plan.Weave(f, m, nil)
		if err != nil {
			t.Fatal(err)
		}
		write(c.name+".ptx", w.Text)
		fmt.Fprintf(&cases, "case %s %d\n%s\n", c.name, m.Size(), strings.Join(rec.lines, "\n"))
		for name, each := range c.sums {
			name, two := strings.CutSuffix(name, "/2")
			sum := each * threads
			if two {
				sum /= 2
			}
			x := m.Find(name)
			from := uint64(0)
			if x.Kind == object.LayoutHash {
				from = x.Hash.ValueOff
			}
			fmt.Fprintf(&cases, "sum %d %d %d %s\n", x.Addr()-gpuBase+from, x.Size()-from, sum, name)
		}
	}
	for _, c := range handCases {
		text, size := handWritten(src, c.entry, c.access, c.end, threads)
		if _, err := ptx.Parse(c.name, text, nil); err != nil {
			t.Fatal(err)
		}
		write(c.name+".ptx", text)
		fmt.Fprintf(&cases, "case %s %d\n", c.name, size)
	}
	write("cases", cases.String())
}
