package host

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/object"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/jump"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
)

var (
	sweep     = flag.Bool("sweep", false, "put probes at all functions of this machine's libraries and programs")
	sweepOnly = flag.String("sweep-only", "", "of these commands only: a part of their text")
)

// sweepCommands are run with probes at the functions of what they map. What they print is the same each time.
var sweepCommands = [][]string{
	{"ls", "-l", "/bin/"},
	{"python3", "-c", "import json, re, math, hashlib, zlib, random; random.seed(1); print(json.dumps([random.random(), math.gamma(2.5), re.findall('a+', 'baab'), hashlib.sha256(b'x').hexdigest(), len(zlib.compress(b'abc' * 1000))]))"},
	{"/usr/bin/python3", "-c", "import re, math, zlib; print(math.gamma(2.5), re.findall('a+', 'baab'), len(zlib.compress(b'abc' * 1000)))"},
	{"bash", "-c", "for i in 1 2 3; do x=$(echo $i | cat); echo \"${x}a\"; done; printf '%s\\n' {a..e} | while read l; do echo -n $l; done"},
	{"openssl", "enc", "-aes-256-cbc", "-pbkdf2", "-iter", "10", "-k", "x", "-nosalt", "-in", "/etc/passwd"},
	{"openssl", "dgst", "-sha512", "/etc/passwd"},
	{"git", "diff", "--no-index", "--stat", "/etc/passwd", "/etc/group"},
	{"git", "hash-object", "/etc/passwd"},
	{"perl", "-e", "my %h = map { $_ => $_ ** 2 } 1 .. 100; print join(',', map { sprintf '%.3f', sqrt $h{$_} } sort { $a <=> $b } keys %h), \"\\n\"; print `echo child`"},
	{"node", "-e", "console.log([3, 1, 2].sort().map(x => Math.sqrt(x)), JSON.stringify({a: 1}))"},
	{"cat", "/etc/passwd"},
	{"sort", "-r", "/etc/passwd"},
	{"grep", "-c", "[a-r]oot*", "/etc/passwd"},
	{"sed", "s/\\(r\\)oot/\\1x/g", "/etc/passwd"},
	{"awk", "-F:", "{ s += $3 * 1.5 } END { print s, NR, length($0) }", "/etc/passwd"},
	{"tar", "cf", "-", "/etc/passwd"},
	{"gzip", "-nc", "/etc/passwd"},
	{"xz", "-c", "/etc/passwd"},
	{"bzip2", "-c", "/etc/passwd"},
	{"find", "/etc", "-maxdepth", "1", "-name", "p*"},
	{"diff", "/etc/passwd", "/etc/group"},
	{"dpkg", "-l", "dpkg"},
	// What it prints, and does, depends on caches that other runs of apt write.
	{"apt-cache", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "Dir::State::lists=/nonexistent/", "policy", "dpkg"},
	{"make", "-n", "-f", "/dev/null", "--eval", "all: ; echo $(words a b c)"},
	{"ld", "--version"},
	{"objdump", "-h", "/bin/true"},
	{"date", "-u", "-d", "@0"},
	{"od", "-c", "/etc/hostname"},
	{"seq", "-f", "%.3f", "1", "20"},
	{"env", "-i", "A=1", "env"},
	{"file", "/bin/true"},
}

// sweepFiles are the libraries that are looked at, beside the programs themselves.
var sweepFiles = regexp.MustCompile(`^(libc|libm|libstdc\+\+|libcrypto|libpython3\.\d+|libz)\.so`)

// A sweeper counts what became of the functions of files.
type sweeper struct {
	*testing.T
	seen map[string]*swept
}

type swept struct {
	all, hooked int
	slow        map[string]int
	refused     map[string]int
}

// TestSweep: programs as distributions have them compute the same with a probe at each of their functions, and each
// of their libraries', wherever a symbol or a description for unwinding says that one begins. What differs
// is traced to the function. It is run by `make sweep-probes`.
func TestSweep(t *testing.T) {
	if !*sweep {
		t.Skip("make sweep-probes runs it")
	}
	s := &sweeper{t, make(map[string]*swept)}
	for _, argv := range sweepCommands {
		if !strings.Contains(strings.Join(argv, " "), *sweepOnly) {
			continue
		}
		if _, err := exec.LookPath(argv[0]); err != nil {
			t.Logf("%s is not installed", argv[0])
			continue
		}
		s.command(argv)
	}
	for _, path := range slices.Sorted(maps.Keys(s.seen)) {
		x := s.seen[path]
		t.Logf("%s: %d functions, %d hooked; slow %v; refused %v", path, x.all, x.hooked, x.slow, x.refused)
	}
}

// command runs a command with probes in each file that it maps.
func (s *sweeper) command(argv []string) {
	alone, again := s.alone(argv), s.alone(argv)
	if alone != again {
		s.Errorf("%q prints something else each time", argv)
		return
	}
	files := make(map[string]bool)
	_, _ = s.traced(argv, "", nil, false, func(path string) { files[path] = true })
	exe, err := exec.LookPath(argv[0])
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		s.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if path != exe && !sweepFiles.MatchString(filepath.Base(path)) {
			continue
		}
		addrs, err := functionsOf(path)
		if err != nil {
			s.Errorf("%s: %v", path, err)
			continue
		}
		x, count := s.seen[path], s.seen[path] == nil
		if count {
			x = &swept{slow: make(map[string]int), refused: make(map[string]int)}
			s.seen[path] = x
		}
		for some := range slices.Chunk(addrs, sweepChunk) {
			for _, returns := range []bool{false, true} {
				began := time.Now()
				got, r := s.traced(argv, path, some, returns, nil)
				if count {
					x.add(r, len(some), returns)
				}
				s.Logf("%s in %s: %d places, returns %v: %d calls, same %v, %v", argv[0], path, len(some), returns, r.rig.count(5), got == alone, time.Since(began).Round(time.Millisecond))
				switch got {
				case alone:
				case tooSlow:
					s.Logf("%q takes longer than %v", argv, sweepLimit)
				default:
					s.Logf("%.1000q, alone %.1000q", got, alone)
					s.bisect(argv, path, some, returns, alone)
				}
			}
		}
	}
}

// sweepChunk is how many places have probes at a time: a process can have some 16,000 hooks.
const sweepChunk = 8192

// A run may take as long as sweepLimit, where threads stop at functions that are called often; then it is
// tooSlow.
const (
	sweepLimit = 5 * time.Minute
	tooSlow    = "too slow"
)

// bisect finds the places without which a run is as it is alone.
func (s *sweeper) bisect(argv []string, path string, addrs []uint64, returns bool, alone string) {
	for len(addrs) > 1 {
		half := addrs[:len(addrs)/2]
		if got, _ := s.traced(argv, path, half, returns, nil); got == alone {
			half = addrs[len(addrs)/2:]
			if got, _ := s.traced(argv, path, half, returns, nil); got == alone {
				got, _ = s.traced(argv, path, addrs, returns, nil)
				s.Errorf("%q: %s: %d places from %#x on together (returns %v): %.200q, alone %.200q", argv, path, len(addrs), addrs[0], returns, got, alone)
				return
			}
		}
		addrs = half
	}
	got, _ := s.traced(argv, path, addrs, returns, nil)
	s.Errorf("%q: %s: %#x, returns %v: %.200q, alone %.200q", argv, path, addrs[0], returns, got, alone)
}

// alone runs a command untraced, and returns what it prints and how it ends.
func (s *sweeper) alone(argv []string) string {
	cmd := exec.Command(argv[0], argv[1:]...)
	out, _ := cmd.Output() // its status is below
	return fmt.Sprintf("%d %s", cmd.ProcessState.ExitCode(), out)
}

// sweepRig is a rig whose program runs at places that it is given.
type sweepRig struct {
	rig  *rig
	list []*target
	refused
}

// traced runs a command with a probe at each place of a file. mapped, if not nil, is told what it maps.
func (s *sweeper) traced(argv []string, path string, addrs []uint64, returns bool, mapped func(path string)) (string, *sweepRig) {
	s.Helper()
	r := &sweepRig{rig: rigOf(s.T, "../testdata/obj/host.bpf.o", true, "tiny_enter")}
	kind := object.HostEntry
	if returns {
		kind = object.HostReturn
	}
	q := r.rig.plan.Host[0]
	q.Point = object.HostPoint{Kind: kind, Binary: path, Func: "*"}
	tr, err := New(&r.rig.tracer.opts, 1)
	if err != nil {
		s.Fatal(err)
	}
	r.rig.tracer = tr
	if mapped == nil {
		s.places(r, q, path, addrs)
	} else {
		tr.watcher.Mapped = func(_ *ptrace.Task, e *dso.Event) {
			for _, m := range e.Files() {
				mapped(m.Path)
			}
		}
	}
	out, err := os.CreateTemp(s.TempDir(), "out")
	if err != nil {
		s.Fatal(err)
	}
	defer out.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		s.Fatal(err)
	}
	defer null.Close()
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	o := r.rig.options()
	o.Argv, o.Stdin, o.Stdout, o.Stderr = argv, null, out, null
	res, err := ptrace.Run(ctx, o, r.rig)
	if ctx.Err() != nil {
		return tooSlow, r
	}
	if err != nil {
		return err.Error(), r
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		s.Fatal(err)
	}
	return fmt.Sprintf("%d %s", res.Status.ExitStatus(), b), r
}

// places has the program run at addresses of a file.
func (s *sweeper) places(r *sweepRig, q *hostrun.Program, path string, addrs []uint64) {
	f, key, err := proc.OpenRegular(path)
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	tr := r.rig.tracer
	code, err := tr.codes.Of(f, key)
	if err != nil {
		s.Fatal(err)
	}
	places := make(map[uint64]*target)
	for _, addr := range addrs {
		tr.addPlace(code, nil, places, q, addr, fmt.Sprintf("%#x", addr), fmt.Sprintf("%#x", addr), &r.refused)
	}
	r.list = slices.Collect(maps.Values(places))
	slices.SortFunc(r.list, func(a, b *target) int { return int(int64(a.offset) - int64(b.offset)) })
	tr.files[key] = r.list
}

var numbers = regexp.MustCompile(`[-+]?0x[0-9a-f]+|\d+`)

// why shortens a reason to what is the same for many places.
func why(err error) string {
	text := err.Error()
	if i := strings.Index(text, " at 0x"); i >= 0 {
		if k := strings.Index(text[i:], ": "); k >= 0 {
			text = text[i+k+2:]
		}
	}
	return numbers.ReplaceAllString(text, "N")
}

// add counts what became of the places of a run.
func (x *swept) add(r *sweepRig, all int, returns bool) {
	for _, err := range r.why {
		x.refused[why(err)] += 1 + r.more[err]
	}
	for _, text := range r.rig.said {
		if strings.Contains(text, "can't be") {
			x.refused[numbers.ReplaceAllString(text, "N")]++
		}
	}
	if returns {
		return
	}
	x.all += all
	for _, err := range r.rig.tracer.slow {
		x.slow[why(err)]++
	}
	for _, t := range r.list {
		if t.hook != nil && r.rig.tracer.slow[t.name] == nil {
			x.hooked++
		}
	}
}

// functionsOf returns where symbols and descriptions for unwinding say that functions of a file begin.
func functionsOf(path string) ([]uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e, err := dso.Read(f)
	if err != nil {
		return nil, err
	}
	list := make(map[uint64]bool)
	ranges, _ := unwind.Ranges(e)
	for i := range ranges {
		list[ranges[i].Start] = true
	}
	all, _ := e.Symbols()
	dynamic, _ := e.DynamicSymbols()
	for _, symbol := range slices.Concat(all, dynamic) {
		if (symbol.Function() || symbol.Indirect()) && !jump.Part(symbol.Name) {
			list[symbol.Addr] = true
		}
	}
	var addrs []uint64
	for addr := range list {
		if _, ok := e.Offset(addr); ok {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs, nil
}
