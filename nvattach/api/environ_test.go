package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvtrace/traces"
)

func TestEnvironment(t *testing.T) {
	const libc = "/lib/x86_64-linux-gnu/libc.so.6"
	tr, cuda, all := NewTracker(), NewEnvironment(false), NewEnvironment(true)
	add := func(ev *traces.Event) {
		f := tr.Add(ev)
		cuda.Add(ev, tr, f)
		all.Add(ev, tr, f)
	}
	now := int64(0)
	read := func(by, fn, name, value string) {
		now += 10
		c := in(call(now, libc, fn, 0x5000), 0x5000, text(name))
		c.Text = by
		add(c)
		r := ret(c, 1, 0)
		if value != "" {
			r.Ret = 0x6000
			out(r, 0x6000, text(value))
		}
		add(r)
	}
	read("/usr/lib/libcuda.so.1", "getenv", "CUDA_VISIBLE_DEVICES", "0,1")
	read("/opt/libcudart.so.12", "secure_getenv", "CUDA_VISIBLE_DEVICES", "0,1")
	read("/usr/lib/libcuda.so.1", "getenv", "CUDA_0123abcd", "")
	read("/usr/bin/app", "getenv", "LANG", "C")
	read("", "getenv", "HOME", "/home/u")
	// As glibc does it.
	secure := in(call(now+11, libc, "secure_getenv", 0x5000), 0x5000, text("CUDA_FORCE_PTX_JIT"))
	secure.Text = "/usr/lib/libcuda.so.1"
	add(secure)
	now += 5
	read(libc, "getenv", "CUDA_FORCE_PTX_JIT", "1")
	back := ret(secure, 20, 0x6000)
	out(back, 0x6000, text("1"))
	add(back)
	now += 30
	outer := call(now+1, libcuda, "cuInit", 0)
	add(outer)
	now += 5
	read("", "getenv", "HOME", "/home/u")
	open := in(call(now+20, libc, "getenv", 0x5000), 0x5000, text("CUDA_CACHE_PATH"))
	add(open)
	add(ret(outer, 100, 0)) // and longjmp out of it
	want := []Variable{
		{Name: "CUDA_FORCE_PTX_JIT", Reads: 1, Set: true, Value: "1", By: []string{"libcuda.so.1"}, Meaning: variables["CUDA_FORCE_PTX_JIT"].meaning, Known: "driver"},
		{Name: "CUDA_VISIBLE_DEVICES", Reads: 2, Set: true, Value: "0,1", By: []string{"libcuda.so.1", "libcudart.so.12"}, Meaning: variables["CUDA_VISIBLE_DEVICES"].meaning, Known: "driver"},
		{Name: "HOME", Reads: 1, Set: true, Value: "/home/u", By: []string{"driver"}},
		{Name: "CUDA_0123abcd", Reads: 1, By: []string{"libcuda.so.1"}, Internal: true},
		{Name: "CUDA_CACHE_PATH", Reads: 1, By: []string{"driver"}, Meaning: variables["CUDA_CACHE_PATH"].meaning, Known: "driver"},
	}
	// The order: what is set first.
	if d := cmp.Diff(want, cuda.Variables()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	names := map[string]uint64{}
	for _, v := range all.Variables() {
		names[v.Name] = v.Reads
	}
	if d := cmp.Diff(map[string]uint64{"CUDA_VISIBLE_DEVICES": 2, "HOME": 2, "CUDA_0123abcd": 1, "CUDA_CACHE_PATH": 1, "LANG": 1, "CUDA_FORCE_PTX_JIT": 1}, names); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestEnvironmentBound(t *testing.T) {
	tr, e := NewTracker(), NewEnvironment(true)
	for i := range maxVariables + 100 {
		c := in(call(int64(i), "libc.so.6", "getenv", 0x5000), 0x5000, text("V"+itoa(i)))
		e.Add(c, tr, tr.Add(c))
		r := ret(c, 1, 0)
		e.Add(r, tr, tr.Add(r))
	}
	if n := len(e.Variables()); n != maxVariables {
		t.Errorf("%d variables are kept", n)
	}
}

// TestVariablesAreWellFormed holds the list of documented variables in order.
func TestVariablesAreWellFormed(t *testing.T) {
	for name, v := range variables {
		if v.meaning == "" || v.by == "" || len(v.meaning) > 100 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
