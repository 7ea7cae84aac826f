package script

import (
	"errors"
	"os"
	"regexp"
	"testing"
)

// wrongUses are what users of C, bpftrace and SQL type first, and what each is answered: what is wrong and what to
// write.
var wrongUses = []struct{ text, want string }{
	{`kernel:* { @ = cout(); }`, `there is no function cout; did you mean count?`},
	{`kernel:* { @[kernal] = count(); }`, `there is no kernal; did you mean kernel?`},
	{`kernl:* { @ = count(); }`, `there is no probe kernl; did you mean kernel?`},
	{`kernel { @ = count(); }`, `kernel needs a name: kernel:KERNEL, or kernel:* for all`},
	{`kernel:* { @ = count()`, `this '{' has no '}'`},
	{`kernel:* { @ = count(1); }`, `count has 1 argument; it is count()`},
	{`kernel:* { @ = hist(); }`, `hist has 0 arguments; it is hist(n)`},
	{`kernel:* { @[addr] = count(); }`, `addr is not known at kernel, but at mem`},
	{`mem:* /kind = store/ { @ = count(); }`, `a value is compared with ==; = assigns, and is a statement`},
	{`mem:* /kind == store/ { @ = count(); }`, `there is no store; a kind is written as a string: "store"`},
	{`mem:* /kind == "stroe"/ { @=count(); }`, `no kind is called "stroe"; did you mean store?`},
	{`uprobe:libc:malloc { @[retval] = count(); }`, `retval is not known at uprobe, but where it returns`},
	{`uretprobe:libc:malloc { @[arg0] = count(); }`, `arg0 is not known at uretprobe, where the function has returned: keep it at uprobe, by tid`},
	{`syscall:* { printf("%d"); }`, `the format wants more than the 0 values behind it`},
	{`syscall:* { printf("%q", 1); }`, `there is no conversion %q; there are %d %u %x %o %c %p of numbers, %s of names and strings`},
	{`syscall:* { printf("%d", 1, 2); }`, `the format has no conversion for this; it has 1`},
	{`syscall:* { $x = 1; $y = $z; }`, `$z has no value yet; did you mean $x?`},
	{`interval:s:1 { print(@); }`, `nothing is ever put into @`},
	{`interval:1 { print(@a); }`, `1 is too short: a millisecond is the least`},
	{`interval:xs { @ = count(); }`, `an interval is interval:1s, interval:100ms or interval:s:1`},
	{`BEGIN { @ = count();`, `this '{' has no '}'`},
	{`profile:hz:99 { @=count(); }`, `profile: a GPU's threads can't be sampled: count at block:* instead`},
	{`kprobe:do_nanosleep { @=count(); }`, `kprobe: bpftrace has it; here there are kernel, mem, insn, block and others in kernels, and ioctl, api, apiret, launch, uprobe and syscall on the host`},
	{`tracepoint:sched:* { @=count(); }`, `tracepoint: of the system calls there are syscall:NAME and sysret:NAME`},
	{`usdt:libc:memroy { @ = count(); }`, `"libc:memroy": write usdt:FILE:PROVIDER:NAME`},
	{`kernel:* { @x = count(); @x = sum(1); }`, `@x is count() at 1:12; it can't be sum(n), too`},
	{`kernel:* { @[tid] = count(); @[tid, 1] = count(); }`, `@ has a key of 2 parts here, but a key of 1 part at 1:12`},
	{`kernel:* { if (tid) @ = count(); }`, `'{' is missing behind the condition, not '@'`},
	{`kernel:* { $x = "a"; $x = 1; }`, `$x is a string, and can't become a number`},
	{`kernel:* { delete(x); }`, `delete wants a key of a map: delete(@x[key])`},
	{`kernel:* { clear(@nosuch); }`, `clear runs on the host: put it into END { … }`},
	{`kernel:* { @[ustack] = count(); }`, `there is no ustack: a kernel's stack is not known; site names the place, and uprobe:libcuda:cuLaunchKernel { @[ustack] = count(); } who launches`},
	{`kernel:* { @[comm] = count(); }`, `there is no comm: a kernel has no command; pid is the process`},
	{`kernel:* { @[elapsed] = count(); }`, `there is no elapsed: subtract two nsecs`},
	{`uprobe:malloc { @=count(); }`, `the function is missing behind "malloc"; write FILE:FUNCTION`},
	{`api:* { @[ustack] = count(); }`, `ustack is not known at api, but at ioctl, apiret, alloc, free and launch`},
	{`image:* { @[pystack]=count(); }`, `pystack is not known at image, but at ioctl, apiret, alloc, free and launch`},
	{`kernel:* { @[nvtx] = count(); }`, `there is no nvtx: a thread on the host is in a range: launch:* { @[nvtx, kernel] = count(); }`},
	{`uprobe:libc:malloc { @[nvtx] = count(); }`, `there is no nvtx at uprobe; there are retval, nr, pid, tid, uid, gid, comm, probe, func, name, cpu, nsecs, elapsed, rand and ustack`},
	{`kernel:* { @ = avg("x"); }`, `avg wants a number, and this is a string`},
	{`kernel:* { @ = lhist(1,2); }`, `lhist has 2 arguments; it is lhist(n, min, max, step)`},
	{`kernel:* { @ = lhist(1, 10, 0, 1); }`, `lhist(n, min, max, step) wants min below max, and steps that fit between`},
	{`kernel:* { 5 = 3; }`, `a statement is expected, not '5'`},
	{`kernel:* { @['a']=count(); }`, `strings stand between double quotes: "…"`},
	{`kernel:* { @ = count(); } }`, `a probe is expected, not '}'; write for example kernel:* { @[kernel] = count(); }`},
	{`kernel:* { #define X }`, `a comment begins with //`},
	{`kernel:* { exit(); }`, `there is no exit: a program that is traced is not ended; nvtrace returns when it does`},
	{`mem:* { @[size.x]=count(); }`, `size has no member x; tid, ctaid, ntid and nctaid have .x .y .z`},
	{`kernel:* { @[tid.w]=count(); }`, `tid has no member w; tid, ctaid, ntid and nctaid have .x .y .z`},
	{`api: { @ = count(); }`, `a name is missing: api:FUNCTION, or api:* for all`},
	{`kernel:* { system("ls"); }`, `there is no system: programs start no others`},
	{`kernel:* { @[kstack] = count(); }`, `there is no kstack: a kernel's stack is not known; site names the place`},
	{`kernel:* { @[threadIdx.x] = count(); }`, `there is no threadIdx: it is tid.x`},
	{`kernel:* { @[name] = count(); }`, `there is no name: it is kernel`},
	{`kernel:* { @[bytes] = count(); }`, `there is no bytes: it is size`},
	{`mem:* { @[address] = count(); }`, `there is no address: it is addr`},
	{`mem:* { @[type] = count(); }`, `there is no type: it is kind`},
	{`kernel:* { printf(1); }`, `printf begins with a format: printf("%d\n", n)`},
	{`kernel:* { let $x = 1; }`, `a variable is not declared: it begins with $, and is there when it is assigned to: $x = 1`},
	{`kernel:* { $x = 1`, `this '{' has no '}'`},
	{`ioctl:* { @[cmd] = count(); }`, `there is no cmd at ioctl: it is sub`},
	{`api:* { @[ret] = count(); }`, `there is no ret at api: it is retval`},
	{`launch:* { @[gridDim] = count(); }`, `there is no gridDim at launch: it is nctaid`},
	{`kernel:* { @ = "a" + 1; }`, `+ wants numbers, and this is a string`},
	{`kernel:* { @ = sum("a"); }`, `sum wants a number, and this is a string`},
	{`syscall:* { @[func] = sum(comm); }`, `func is not known at syscall, but at uprobe and uretprobe; probe is the probe as it is written`},
}

// TestWrongUses: each has its message, at a place in the program.
func TestWrongUses(t *testing.T) {
	for _, c := range wrongUses {
		_, err := Compile("-e", c.text)
		e, ok := errors.AsType[*Error](err)
		switch {
		case !ok:
			t.Errorf("%s: %v", c.text, err)
		case e.Reason != c.want:
			t.Errorf("%s:\n%s\nwant:\n%s", c.text, e.Reason, c.want)
		case e.Line < 1 || e.Col < 1:
			t.Errorf("%s: at %d:%d", c.text, e.Line, e.Col)
		}
	}
	if len(wrongUses) < 60 {
		t.Errorf("only %d", len(wrongUses))
	}
}

// TestBpftrace: what docs/bpftrace.md says that runs is a program of the language.
func TestBpftrace(t *testing.T) {
	page, err := os.ReadFile("../../docs/bpftrace.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\|[^|]*\\| `(.*)` \\| runs").FindAllStringSubmatch(string(page), -1)
	for _, row := range rows {
		if _, err := Compile("-e", row[1]); err != nil {
			t.Error(err)
		}
	}
	if len(rows) < 20 {
		t.Errorf("only %d rows", len(rows))
	}
}
