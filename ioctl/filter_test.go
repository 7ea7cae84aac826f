package ioctl

import (
	"strings"
	"testing"

	"nvtrace/rm"
	"nvtrace/traces"
)

func TestFilter(t *testing.T) {
	type scene struct {
		events []*traces.Event
		calls  []Call
	}
	var all scene
	for _, w := range []*world{startup(t), memory(t), uvm(t), odd(t)} {
		d := NewDecoder(w.header())
		for _, e := range w.events {
			c := d.Decode(e)
			c.Parts = nil // belong to the decoder
			all.events = append(all.events, e)
			all.calls = append(all.calls, c)
		}
	}
	for _, row := range []struct {
		exprs []string
		want  int // selected events, the one note apart
	}{
		{nil, len(all.events) - 2},
		{[]string{"device=nvidia-uvm"}, 7},
		{[]string{"device=NVIDIAN"}, 4},
		{[]string{"device=nvidia0,nvidia-uvm"}, 11},
		{[]string{"ioctl=NV_ESC_RM_MAP_MEMORY"}, 1},
		{[]string{"ioctl=nv_esc_rm_map_*"}, 2},
		{[]string{"ioctl=0x2b"}, 8},
		{[]string{"ioctl=UVM_*"}, 4},
		{[]string{"control=NV2080_*GPU*"}, 10},
		{[]string{"control=0x20800110"}, 7},
		{[]string{"control=0x2080a083"}, 1},
		{[]string{"control=!NV2080*", "ioctl=NV_ESC_RM_CONTROL"}, 6},
		{[]string{"class=*CHANNEL*"}, 2},
		{[]string{"class=0xc86f,0x80"}, 3},
		{[]string{"class=*", "status=!OK"}, 2},
		{[]string{"status=NV_ERR_INVALID_ARGUMENT"}, 2},
		{[]string{"status=0x1f"}, 2},
		{[]string{"status=EINVAL,ENOMEM"}, 4},
		{[]string{"status!=ok", "call=ioctl", "status=nv_*"}, 9},
		{[]string{"status=!OK", "call=!ioctl,open,close,dup,mmap,munmap,mremap"}, 0}, // no result, no status
		{[]string{"status=*", "call=!ioctl,open,close,dup,mmap,munmap,mremap"}, 0},
		{[]string{"status=!OK"}, 15},
		{[]string{"call=open"}, 8},
		{[]string{"call!=ioctl,open,close", "pid=4711"}, 13},
		{[]string{"pid=1"}, 0},
		{[]string{"tid=4711"}, len(all.events) - 2},
		{[]string{"unknown=any"}, 8},
		{[]string{"unknown=class,control"}, 1},
		{[]string{"unknown=closed"}, 2},
	} {
		f, err := ParseFilter(row.exprs...)
		if err != nil {
			t.Errorf("%v: %v", row.exprs, err)
			continue
		}
		n := 0
		for i, e := range all.events {
			if f.Match(e, &all.calls[i]) {
				n++
			}
		}
		if n-2 != row.want { // a note and a lost event
			t.Errorf("%v selects %d, want %d", row.exprs, n-2, row.want)
		}
	}
	if !(*Filter)(nil).Match(&traces.Event{}, &Call{}) {
		t.Error("a nil filter must select everything")
	}
}

func TestFilterErrors(t *testing.T) {
	for _, row := range []struct{ expr, want string }{
		{"ioctl", `filter "ioctl": no "=" in it; write KEY=VALUE, where KEY is one of device, ioctl`},
		{"iotcl=x", `unknown key "iotcl"; it is one of device, ioctl, control, class, call, pid, tid, status, unknown`},
		{"device=nvida0", `unknown device "nvida0"; it is one of nvidiactl, nvidian, nvidia-uvm`},
		{"call=opne", `unknown call "opne"; it is one of open, close`},
		{"pid=x", `pid "x" is not a number`},
		{"status=BAD", `unknown status "BAD"`},
		{"unknown=x", `unknown unknown "x"; it is one of any, class`},
		{"ioctl=*a,,b", `an empty value for "ioctl"`},
		{"ioctl!=!a", "negated twice"},
		{"ioctl=NV_ESC_RM_ALOC", `no known driver has an ioctl that "NV_ESC_RM_ALOC" matches; did you mean NV_ESC_RM_ALLOC?`},
		{"ioctl!=NOSUCH*", `no known driver has an ioctl that "NOSUCH*" matches`},
		{"control=NV2080_CTRL_CMD_BUSS_GET_PCI*", `a control command that "NV2080_CTRL_CMD_BUSS_GET_PCI*" matches; did you mean NV2080_CTRL_CMD_BUS_GET_PCI_`},
		{"class=*CHANEL_GPFIFO*", `a class that "*CHANEL_GPFIFO*" matches; did you mean NV50_CHANNEL_GPFIFO`},
	} {
		if _, err := ParseFilter("device=*", row.expr); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", row.expr, err, row.want)
		}
	}
}

// TestFilterOldNames: a name that an old driver alone has is none that is mistyped.
func TestFilterOldNames(t *testing.T) {
	old := oldName(t)
	if _, err := ParseFilter("ioctl=" + old); err != nil {
		t.Errorf("%s, which a driver has: %v", old, err)
	}
}

// oldName returns an ioctl that the newest driver does not have.
func oldName(t *testing.T) string {
	t.Helper()
	now := make(map[string]bool)
	namesIn(rm.Newest(), keyIoctl, func(name string) bool {
		now[name] = true
		return true
	})
	for name := range namesOf(keyIoctl) {
		if !now[name] && genericNamed(name) == 0 {
			return name
		}
	}
	t.Fatal("the newest driver has every name")
	return ""
}

func genericNamed(name string) uint32 {
	for _, req := range genericRequests {
		if genericName(req) == name {
			return req
		}
	}
	return 0
}
