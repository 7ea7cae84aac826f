package outside

import (
	"bufio"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

const program = `
import sys, threading
def sleeper():
    print("ready", flush=True)
    sys.stdin.read()
def outer():
    sleeper()
t = threading.Thread(target=outer)
t.start()
t.join()
`

// TestThreads wants the lines of Python of each thread, and functions of those in system calls.
func TestThreads(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		need.Missing(t, "python3", err.Error())
	}
	cmd := exec.Command(python, "-c", program)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q: %v", line, err)
	}
	var stacks []string
	// The thread may be between its line and the system call that waits.
	for range 1000 {
		list, err := Threads(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		stacks = nil
		native := 0
		for i := range list {
			var names []string
			for _, f := range list[i].Python {
				names = append(names, f.Func[strings.LastIndexByte(f.Func, '.')+1:])
			}
			stacks = append(stacks, strings.Join(names, " "))
			if slices.ContainsFunc(list[i].Native, func(f Function) bool { return f.File != "" }) {
				native++
			}
		}
		if len(list) == 2 && native == 2 && strings.HasPrefix(stacks[1], "sleeper outer run") && strings.HasSuffix(stacks[0], "join <module>") {
			return
		}
	}
	t.Errorf("stacks: %q", stacks)
}

// TestNoProcess wants an error.
func TestNoProcess(t *testing.T) {
	if _, err := Threads(1 << 30); err == nil {
		t.Error("a process that there isn't has threads")
	}
}
