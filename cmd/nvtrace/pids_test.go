package main

import (
	"io"
	"strings"
	"testing"
)

// TestGPUNode: which open files tell that a process uses a GPU.
func TestGPUNode(t *testing.T) {
	for path, want := range map[string]bool{
		"/dev/nvidia0": true, "/dev/nvidia15": true, "/dev/nvidia-uvm": true, "/dev/nvidiactl": false, "/dev/nvidia-modeset": false,
		"/dev/nvidia": false, "/dev/null": false, "/tmp/dev/nvidia0": false, "/dev/nvidia-caps/nvidia-cap1": false,
	} {
		if isGPUNode(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

// TestPIDList: the forms of -p.
func TestPIDList(t *testing.T) {
	var l pidList
	for _, s := range []string{"7", "8,9", "8"} {
		if err := l.Set(s); err != nil {
			t.Error(err)
		}
	}
	if got := l.String(); got != "7, 8 and 9" {
		t.Error(got)
	}
	for _, s := range []string{"", "0", "-1", "1,", "a"} {
		if l.Set(s) == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// TestPIDFlags puts -p before process ids, and before nothing else.
func TestPIDFlags(t *testing.T) {
	e := &env{stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return "" }}
	for _, test := range []struct{ args, want string }{
		{"1234", "-p 1234"},
		{"--api 1234", "--api -p 1234"},
		{"1234 --flight 5 -o run.nvt", "-p 1234 --flight 5 -o run.nvt"},
		{"--flight 5 -o 7", "--flight 5 -o 7"},
		{"-p 12 34", "-p 12 -p 34"},
		{"./1234", "./1234"},
		{"0", "0"},
		{"007", "007"},
		{"-5", "-5"},
		{"99999999999", "99999999999"},
		{"app 1234", "app 1234"},
	} {
		if got := strings.Join(pidFlags(e, strings.Fields(test.args), nil), " "); got != test.want {
			t.Errorf("%s: %s, want %s", test.args, got, test.want)
		}
	}
	if got := pidFlags(e, []string{"7"}, []string{"app"}); len(got) != 1 {
		t.Errorf("before a command: %q", got)
	}
}
