// Command user is a program of somebody else's that imports nvtrace's public packages: it says what a
// recording, a fat binary and a kernel in PTX hold, and proves an eBPF program.
package main

import (
	"fmt"
	"log"
	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/ioctl"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
	"nvtrace/ptx/emu"
	"nvtrace/rm"
	"nvtrace/traces"
	"os"

	"github.com/cilium/ebpf/asm"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(recording, binary string) error {
	r, err := traces.Open(recording)
	if err != nil {
		return err
	}
	defer r.Close()
	d := ioctl.NewDecoder(&r.Header)
	sum := ioctl.NewSummary(&r.Header)
	var call ioctl.Call
	for ev, err := range r.All() {
		if err != nil {
			return err
		}
		d.DecodeTo(&call, ev)
		sum.Add(ev, &call)
	}
	v, err := rm.ParseVersion(r.Header.Driver)
	if err != nil {
		return err
	}
	fmt.Println("ioctls:", sum.Report().Ioctls, "tables:", rm.Load(v).Version())
	f, err := fatbin.Open(binary, nil)
	if err != nil {
		return err
	}
	defer f.Close()
	for c, err := range f.Containers() {
		if err != nil {
			return err
		}
		fmt.Println("entries:", len(c.Entries))
	}
	if _, known := sass.Decode(90, sass.NOP()); !known {
		return fmt.Errorf("NOP is unknown")
	}
	k, err := ptx.Parse("k.ptx", ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n", nil)
	if err != nil {
		return err
	}
	mod, err := emu.New(nil).Load(k)
	if err != nil {
		return err
	}
	fmt.Println("kernels:", mod.Kernels())
	_, err = bpf.Verify(&bpf.Program{Name: "p", Insns: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}, nil)
	return err
}
