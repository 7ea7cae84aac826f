package python

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// file is the memory of a process that need not stand still: the thread that is looked at runs
// in a loop of one line.
type file struct{ *os.File }

func (f file) ReadMem(addr uint64, b []byte) (int, error) { return f.ReadAt(b, int64(addr)) }

// pythons are the interpreters that the machine has.
func pythons(t *testing.T) []string {
	seen := make(map[string]bool)
	var list []string
	home, _ := os.UserHomeDir() // none is fine
	candidates, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3"))
	for minor := 9; minor <= 14; minor++ {
		candidates = append(candidates, "python3."+strconv.Itoa(minor))
	}
	for _, name := range append(candidates, "python3") {
		out, err := exec.Command(name, "-c", "import sys; print('%d.%d %s' % (sys.version_info[0], sys.version_info[1], sys.base_prefix))").Output()
		minor, _ := strconv.Atoi(strings.TrimPrefix(strings.Fields(string(out) + " x")[0], "3."))
		if err == nil && minor >= 9 && minor <= 14 && !seen[string(out)] {
			seen[string(out)] = true
			list = append(list, name)
		}
	}
	if len(list) == 0 {
		need.Missing(t, "python3", "no Python of 3.9 to 3.14")
	}
	return list
}

// TestStack compares the stacks of threads with what Python says of them itself.
func TestStack(t *testing.T) {
	for _, name := range pythons(t) {
		for _, where := range []string{"main", "thread"} {
			t.Run(filepath.Base(filepath.Dir(filepath.Dir(name)))+" "+where, func(t *testing.T) {
				args := []string{"testdata/deep.py"}
				if where == "thread" {
					args = append(args, where)
				}
				cmd := exec.Command(name, args...)
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer cmd.Wait()
				defer cmd.Process.Kill()
				line, err := bufio.NewReader(out).ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				said, id, _ := strings.Cut(strings.TrimSpace(line), " ")
				tp, err := strconv.ParseUint(id, 10, 64)
				if err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				in, err := Find(cmd.Process.Pid)
				if err != nil {
					t.Fatal(err)
				}
				f, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/mem")
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for range 2 { // what is remembered says the same
					frames, err := in.Stack(file{f}, tp, 100)
					if err != nil || len(frames) == 0 {
						t.Fatalf("3.%d: %d frames: %v", in.Minor, len(frames), err)
					}
					var got []string
					for _, fr := range frames[1:] {
						f := fr.Func[strings.LastIndexByte(fr.Func, '.')+1:]
						got = append(got, f+":"+strconv.Itoa(fr.Line))
					}
					if strings.Join(got, "|") != said {
						t.Errorf("3.%d: got  %s\nwant %s", in.Minor, strings.Join(got, "|"), said)
					}
					var entries []string
					for _, fr := range frames {
						f := fr.Func[strings.LastIndexByte(fr.Func, '.')+1:]
						if fr.Entry && (f != "call" || in.Minor < 11) { // a thread calls its function by one of C, perhaps
							entries = append(entries, f)
						}
					}
					// From 3.11 on, calls from Python to Python are made in one call of the interpreter; the generator
					// is resumed by a function of C.
					if want := []string{"generator", frames[len(frames)-1].Func[strings.LastIndexByte(frames[len(frames)-1].Func, '.')+1:]}; in.Minor >= 11 && !slices.Equal(entries, want) {
						t.Errorf("3.%d: the interpreter was called for %v, want %v", in.Minor, entries, want)
					} else if in.Minor < 11 && len(entries) != len(frames) {
						t.Errorf("3.%d: the interpreter was called for %d of %d", in.Minor, len(entries), len(frames))
					}
					if first := frames[0]; filepath.Base(first.File) != "deep.py" || !strings.HasSuffix(first.Func, "stop") || first.Line < 22 || first.Line > 25 {
						t.Errorf("the innermost call is %+v", first)
					}
				}
				if frames, err := in.Stack(file{f}, 4096, 100); err != nil || len(frames) != 0 {
					t.Errorf("of no thread: %v, %v", frames, err)
				}
				if frames, err := in.Stack(file{f}, tp, 2); err != nil || len(frames) != 2 {
					t.Errorf("two frames: %v, %v", frames, err)
				}
			})
		}
	}
}

func TestNone(t *testing.T) {
	if in, err := Find(os.Getpid()); err == nil {
		t.Errorf("this program has Python 3.%d", in.Minor)
	}
}

// FuzzLines has no table make lineAt fail.
func FuzzLines(f *testing.F) {
	f.Add([]byte{0x80, 0, 0xf0, 0x7f, 0x7f}, int64(4))
	f.Fuzz(func(t *testing.T, rows []byte, at int64) {
		c := code{line: 1, rows: rows}
		for minor := 9; minor <= 14; minor++ {
			c.lineAt(minor, at)
		}
	})
}
