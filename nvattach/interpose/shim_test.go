package interpose

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/gen/built"
	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
)

// TestStamp: the committed shim was built from the committed sources.
func TestStamp(t *testing.T) {
	if err := built.Check("shim/zstamp.txt"); err != nil {
		t.Error(err)
	}
}

// TestReproducible: the committed shim is what the committed sources make.
func TestReproducible(t *testing.T) {
	if why, ok := built.Reproducible("shim/zstamp.txt"); !ok {
		t.Skip(why)
	}
	if made, err := rebuilt(); err != nil || !bytes.Equal(made, shimBytes) {
		t.Errorf("%d bytes are made, %d are committed, and they differ (%v)", len(made), len(shimBytes), err)
	}
}

// TestTable: the shim's table of functions is this package's.
func TestTable(t *testing.T) {
	out := filepath.Join(t.TempDir(), "zfunctions.h")
	if msg, err := exec.Command("go", "run", "./internal/gen", "-h", out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("shim/zfunctions.h")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("shim/zfunctions.h is stale: go generate ./nvattach/interpose")
	}
	names := Functions()
	for i, f := range names {
		if i > 0 && names[i-1].Name >= f.Name {
			t.Errorf("%s does not come after %s", f.Name, names[i-1].Name)
		}
		for _, arg := range []int8{f.Image, f.Out, f.Of, f.Text} {
			if arg >= f.Args || arg > 5 {
				t.Errorf("%s: argument %d of %d", f.Name, arg, f.Args)
			}
		}
		if f.Class.String() == "class?" {
			t.Errorf("%s: class %d has no name", f.Name, f.Class)
		}
	}
}

// checkELF: one file for every glibc: nothing of the C library is needed, by name or version.
func checkELF(t *testing.T, name string, data []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) != 0 {
		t.Errorf("%s: needs %v (%v)", name, libs, err)
	}
	for _, tag := range []elf.DynTag{elf.DT_VERNEED, elf.DT_VERSYM, elf.DT_VERDEF, elf.DT_TEXTREL} {
		if v, err := f.DynValue(tag); err != nil || len(v) != 0 {
			t.Errorf("%s: has %s", name, tag)
		}
	}
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var defined []string
	for _, s := range syms {
		switch {
		case s.Section != elf.SHN_UNDEF:
			defined = append(defined, s.Name)
		case elf.ST_BIND(s.Info) != elf.STB_WEAK:
			t.Errorf("%s: %s is undefined and not weak", name, s.Name)
		}
		if s.Version != "" {
			t.Errorf("%s: %s has version %s", name, s.Name, s.Version)
		}
	}
	slices.Sort(defined)
	want := []string{"__gmon_start__", "dladdr", "dladdr1", "dlmopen", "dlopen", "dlsym", "dlvsym"}
	if !slices.Equal(defined, want) {
		t.Errorf("%s: defines %v, want %v", name, defined, want)
	}
}

func TestELF(t *testing.T) {
	checkELF(t, "the committed shim", shimBytes)
	local, err := rebuilt()
	if err != nil {
		t.Fatal(err)
	}
	checkELF(t, "the rebuilt shim", local)
}

// TestRebuilt: what the local compiler makes of the sources does the same.
func TestRebuilt(t *testing.T) {
	w := getWorld(t)
	local, err := rebuilt()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range programs(w) {
		l := &log{}
		s, done := listen(t, l, ModeCapture)
		if err := os.Remove(s.Path()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.Path(), local, 0o755); err != nil {
			t.Fatal(err)
		}
		diff(t, strings.Join(args, " "), w.run(t, s.Env(w.env()), args...), w.run(t, w.env(), args...))
		done()
		if args[len(args)-1] == "dlsym" && !slices.Contains(l.data(), testPTX) {
			t.Errorf("%v: no image", args)
		}
	}
}

// TestWire: wire.h and wire.go say the same.
func TestWire(t *testing.T) {
	var prog strings.Builder
	prog.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include \"wire.h\"\nint main(void) {\n")
	want := make(map[string]string)
	for name, v := range map[string]any{
		"nvt_header": wireHeader{}, "nvt_hello": wireHello{}, "nvt_call": wireCall{}, "nvt_gap": wireGap{},
		"nvt_welcome": wireWelcome{}, "nvt_verdict": wireVerdict{},
	} {
		st := reflect.TypeOf(v)
		prog.WriteString("printf(\"" + name + " %zu\\n\", sizeof(struct " + name + "));\n")
		want[name] = strconv.Itoa(int(st.Size()))
		end := uintptr(0)
		for f := range st.Fields() {
			c := f.Tag.Get("c")
			prog.WriteString("printf(\"" + name + "." + c + " %zu:%zu\\n\", offsetof(struct " + name + ", " + c + "), sizeof(((struct " + name + " *)0)->" + c + "));\n")
			want[name+"."+c] = strconv.Itoa(int(f.Offset)) + ":" + strconv.Itoa(int(f.Type.Size()))
			if f.Offset != end {
				t.Errorf("%s: a hole before %s", name, c)
			}
			end = f.Offset + f.Type.Size()
		}
		if end != st.Size() || len(encode(v)) != int(st.Size()) {
			t.Errorf("%s: %d bytes of fields, %d encoded, %d in all", name, end, len(encode(v)), st.Size())
		}
	}
	for name, v := range map[string]int64{
		"NVT_MAGIC": wireMagic, "NVT_VERSION": wireVersion, "NVT_MAX_MESSAGE": maxMessage, "NVT_MAX_PATH": maxPath, "NVT_KEY": int64(len(wireHello{}.Key)), "NVT_MAX_DATA": maxData,
		"NVT_MAX_IMAGE": maxImage, "NVT_HASH_PREFIX": HashPrefix, "NVT_HELLO": typeHello, "NVT_IMAGE": typeImage, "NVT_CALL": typeCall,
		"NVT_GAP": typeGap, "NVT_WELCOME": typeWelcome, "NVT_VERDICT": typeVerdict, "NVT_REPLACE": flagReplace, "NVT_OFF": int64(ModeOff),
		"NVT_OBSERVE": int64(ModeObserve), "NVT_CAPTURE": int64(ModeCapture), "NVT_LIBC_OTHER": int64(LibcOther), "NVT_LIBC_GLIBC": int64(LibcGlibc),
		"NVT_LIBC_MUSL": int64(LibcMusl), "NVT_F_FILE": int64(FlagFile), "NVT_F_SENT": int64(FlagSent), "NVT_F_KNOWN": int64(FlagKnown),
		"NVT_F_REPLACED": int64(FlagReplaced), "NVT_F_UNREADABLE": int64(FlagUnreadable), "NVT_F_CUT": int64(FlagCut),
		"NVT_F_HANDLES": int64(FlagHandles), "NVT_F_UUID": int64(FlagUUID), "NVT_GAP_LOST": int64(GapLost), "NVT_GAP_THUNKS": int64(GapThunks),
		"NVT_GAP_LAUNCHES": int64(GapLaunches), "NVT_GAP_MEMORY": int64(GapMemory), "NVT_GAP_TIMEOUT": int64(GapTimeout),
		"NVT_GAP_LIBC": int64(GapLibc), "NVT_GAP_UNWRAPPED": int64(GapUnwrapped),
	} {
		prog.WriteString("printf(\"" + name + " %lld\\n\", (long long)" + name + ");\n")
		want[name] = strconv.FormatInt(v, 10)
	}
	prog.WriteString("return 0; }\n")
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "w.c"), filepath.Join(dir, "w")
	if err := os.WriteFile(src, []byte(prog.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	shim, err := filepath.Abs("shim")
	if err != nil {
		t.Fatal(err)
	}
	if msg, err := exec.Command("gcc", "-I", shim, "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[name] = v
	}
	if !reflect.DeepEqual(got, want) {
		for name, v := range want {
			if got[name] != v {
				t.Errorf("%s: %s in C, %s in Go", name, got[name], v)
			}
		}
	}
	// No constant of wire.h is without its twin.
	header, err := os.ReadFile("shim/wire.h")
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsFuncSeq(string(header), func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') }) {
		if _, ok := want[word]; !ok && strings.HasPrefix(word, "NVT_") && word != "NVT_WIRE_H" && word != "NVT_TABLE" {
			t.Errorf("%s is not compared", word)
		}
	}
}

// TestHash: in pieces as in one.
func TestHash(t *testing.T) {
	data := make([]byte, 1000)
	for i := range data {
		data[i] = byte(i * i)
	}
	seen := make(map[[2]uint64]bool)
	for n := range len(data) {
		h := quickHash(data[:n])
		if seen[h] {
			t.Fatalf("%d bytes: %x again", n, h)
		}
		seen[h] = true
		for _, step := range []int{1, 7, 16, 33} {
			q := newHasher()
			for b := data[:n]; len(b) > 0; b = b[min(step, len(b)):] {
				_, _ = q.Write(b[:min(step, len(b))])
			}
			if q.sum() != h {
				t.Fatalf("%d bytes by %d: %x, want %x", n, step, q.sum(), h)
			}
		}
	}
}

// TestOrdinary: programs that have nothing to do with a GPU run as ever.
func TestOrdinary(t *testing.T) {
	w := getWorld(t)
	s, _ := listen(t, &log{}, ModeCapture)
	for _, args := range [][]string{
		{"bash", "-c", "for i in 1 2 3; do echo $i | cat; done; (exit 7); echo $?; type -t cd; kill -s TERM $$"},
		{"python3", "-c", "import ctypes, ssl, json, sqlite3, multiprocessing.shared_memory, sys, os, threading\n" +
			"print(ctypes.CDLL('libm.so.6').abs(-3), ctypes.CDLL(None).getpid() == os.getpid())\n" +
			"try: ctypes.CDLL('libnothing.so.1')\nexcept OSError as e: print(e)\n" +
			"try: ctypes.CDLL(None).cuModuleLoadData\nexcept AttributeError as e: print(str(e).split(':')[-1])\n" +
			"print(os.popen('echo popen').read())"},
		{"gcc", "-O2", "-o", "/dev/null", "-x", "c", filepath.Join(w.dir, "hello.c")},
		{"git", "--version"},
		{"perl", "-MPOSIX", "-e", "print POSIX::floor(3.7), \"\\n\"; die \"no\\n\""},
		{"ls", "-la", "/proc/self/fd/0"},
		{"sh", "-c", "exec 3>&1; echo three >&3; ls /proc/self/fd | wc -l"},
		{"/bin/false"},
	} {
		t.Run(args[0], func(t *testing.T) {
			need.Tool(t, args[0], "")
			if err := os.WriteFile(filepath.Join(w.dir, "hello.c"), []byte("int main(void){return 0;}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			want := w.run(t, w.env(), args...)
			got := w.run(t, s.Env(w.env()), args...)
			if args[0] == "ls" { // dates and inodes of a new process's files
				want.out, got.out = strconv.Itoa(len(strings.Fields(want.out))), strconv.Itoa(len(strings.Fields(got.out)))
			}
			diff(t, args[0], got, want)
		})
	}
	if n := s.Stats().Connections; n != 0 {
		t.Errorf("%d connections of programs that use no GPU", n)
	}
}

// TestOtherGlibc: one file for every glibc. NVTRACE_GLIBCS names folders, separated
// by colons, into which a distribution's libc6, libc6-dev and linux-libc-dev are
// unpacked.
func TestOtherGlibc(t *testing.T) {
	roots := filepath.SplitList(os.Getenv("NVTRACE_GLIBCS"))
	if len(roots) == 0 {
		need.Missing(t, "glibcs", "needs other versions of glibc in NVTRACE_GLIBCS")
	}
	for _, root := range roots {
		w, err := newWorld(root)
		if w != nil {
			t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range programs(w) {
			want := w.run(t, w.env(), args...)
			if strings.Contains(want.status, "signal") || strings.Contains(want.err, "GLIBC_") || strings.Contains(want.status, "127") {
				t.Fatalf("%s: %v without the shim: %+v", root, args, want)
			}
			for _, mode := range []Mode{ModeObserve, ModeCapture} {
				l := &log{}
				diff(t, root+" "+strings.Join(args, " "), w.trace(t, l, mode, args...), want)
				loads := args[len(args)-1] == "linked" || args[len(args)-1] == "dlsym" || args[0] == "weak-cuda"
				if loads && (len(l.hellos) != 1 || len(l.of("cuModuleLoadData")) == 0) {
					t.Errorf("%s: %v: hellos %+v, %d loads", root, args, l.hellos, len(l.of("cuModuleLoadData")))
				}
				if args[0] == "prog" && args[1] == "dlsym" {
					t.Logf("%s is glibc %d.%d", root, l.hellos[0].Major, l.hellos[0].Minor)
				}
			}
		}
	}
}

// TestMusl: a program on musl runs, and nvtrace is told that there only ptrace helps.
func TestMusl(t *testing.T) {
	gcc := need.Tool(t, "musl-gcc", "")
	w := getWorld(t)
	dir := t.TempDir()
	src := filepath.Join(dir, "m.c")
	text := "#include <dlfcn.h>\n#include <stdio.h>\nint main(void) { void *h = dlopen(\"libnone.so\", RTLD_NOW);\n" +
		"printf(\"%p %s\\n\", h, dlerror()); printf(\"%d\\n\", dlsym(RTLD_DEFAULT, \"printf\") == (void *)printf); return 9; }\n"
	if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "m")
	if msg, err := exec.Command(gcc, "-o", bin, src, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	l := &log{}
	diff(t, "musl", w.trace(t, l, ModeCapture, bin), w.run(t, w.env(), bin))
	if len(l.hellos) != 1 || l.hellos[0].Libc != LibcMusl || len(l.gaps) != 1 || l.gaps[0].Code != GapLibc {
		t.Errorf("hello %+v, gaps %+v", l.hellos, l.gaps)
	}
	if len(l.gaps) == 1 && !strings.Contains(l.gaps[0].String(), "ptrace only") {
		t.Errorf("gap %s", &l.gaps[0])
	}
}

// TestAbstract: where the socket's path is out of reach, its name is tried.
func TestAbstract(t *testing.T) {
	w := getWorld(t)
	l := &log{}
	s, done := listen(t, l, ModeObserve)
	if err := os.Remove(s.sock); err != nil {
		t.Fatal(err)
	}
	w.run(t, s.Env(w.env()), "prog", "dlsym")
	done()
	if len(l.of("cuModuleLoadData")) != 1 {
		t.Errorf("%d loads told", len(l.of("cuModuleLoadData")))
	}
}

func TestEnv(t *testing.T) {
	s, _ := listen(t, &log{}, ModeObserve)
	got := s.Env([]string{"A=1", "LD_PRELOAD=libjemalloc.so:/old/libnvtrace.so /x.so", "NVTRACE_SHIM=1:/old/s", "B=LD_PRELOAD=x"})
	want := []string{
		"A=1", "B=LD_PRELOAD=x", "LD_PRELOAD=" + s.Path() + ":libjemalloc.so:/x.so",
		"ASAN_OPTIONS=verify_asan_link_order=0", "NVTRACE_SHIM=2:" + strings.TrimRight(string(s.key[:]), "\x00") + ":" + s.sock,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for given, want := range map[string]string{
		"":                          "verify_asan_link_order=0",
		"detect_leaks=0":            "detect_leaks=0:verify_asan_link_order=0",
		"verify_asan_link_order=1 ": "verify_asan_link_order=1 ",
	} {
		if got := s.Env([]string{"ASAN_OPTIONS=" + given}); !slices.Contains(got, "ASAN_OPTIONS="+want) {
			t.Errorf("%q: %q", given, got)
		}
	}
}

// TestSanitizer: a program whose AddressSanitizer is a shared library starts, and its
// errors are found as without the shim.
func TestSanitizer(t *testing.T) {
	w := getWorld(t)
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "s.c"), filepath.Join(dir, "s")
	text := "#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **v) {\n" +
		"char *p = malloc(10); setvbuf(stdout, 0, _IONBF, 0); printf(\"%d %d\\n\", dlopen(\"libcuda.so.1\", RTLD_NOW) != 0, dlsym(RTLD_DEFAULT, \"printf\") == (void *)printf);\n" +
		"p[n > 1 ? 10 : 9] = 1; n = p[9] + 8; free(p); return n; }\n"
	if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if msg, err := exec.Command("gcc", "-w", "-fsanitize=address", "-o", bin, src, "-ldl").CombinedOutput(); err != nil {
		need.Missing(t, "asan", "gcc has no AddressSanitizer: "+string(msg))
	}
	env := append(w.env(), "ASAN_OPTIONS=detect_leaks=0:symbolize=0")
	for _, args := range [][]string{{bin}, {bin, "overflow"}} {
		s, done := listen(t, &log{}, ModeObserve)
		got, want := w.run(t, s.Env(env), args...), w.run(t, env, args...)
		done()
		if !strings.HasPrefix(want.out, "1 1\n") || len(args) > 1 != strings.Contains(want.err, "heap-buffer-overflow") {
			t.Fatalf("%v: %+v", args, want)
		}
		if got.out != want.out || got.status != want.status || len(args) > 1 != strings.Contains(got.err, "heap-buffer-overflow") {
			t.Errorf("%v: %+v, want %+v", args, got, want)
		}
	}
}

// TestOutlived: a program that goes on without the server, and has never talked to it,
// executes others as before; where there is none, nothing is left.
func TestOutlived(t *testing.T) {
	w := getWorld(t)
	for _, lives := range []bool{true, false} {
		o := (&log{}).options(ModeObserve)
		o.Outlived = true
		s, err := Listen(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(s.dir.Path) })
		cmd := exec.Command("sh", "-c", "echo begun; read line; env true; exit 4")
		cmd.Env = s.Env(w.env())
		var stderr strings.Builder
		cmd.Stderr = &stderr
		in, out := testprog.Start(t, cmd)
		if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
			t.Fatal(err)
		}
		if lives {
			err = s.Close()
		}
		_ = in.Close()
		if e := cmd.Wait(); cmd.ProcessState.ExitCode() != 4 || stderr.String() != "" {
			t.Errorf("lives %v: %v, stderr %q", lives, e, &stderr)
		}
		if !lives {
			err = s.Close()
		}
		if err != nil {
			t.Error(err)
		}
		if fileExists(s.Path()) != lives || fileExists(s.sock) {
			t.Errorf("lives %v: the shim is there: %v, the socket: %v", lives, fileExists(s.Path()), fileExists(s.sock))
		}
	}
}

// quickHash is the hash that the shim names an image by.
func quickHash(b []byte) [2]uint64 {
	h := newHasher()
	_, _ = h.Write(b)
	return h.sum()
}
