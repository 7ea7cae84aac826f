package api

import "strings"

// Purpose is what a program calls a function for, as far as that says where its time goes.
type Purpose uint8

// The purposes.
const (
	NoPurpose  Purpose = iota
	Waiting            // for the GPU
	Launching          // kernels and graphs
	Copying            // copies and sets; those that are not asynchronous wait, too
	Allocating         // and freeing memory, and mapping it
	Loading            // code
	Starting           // the driver, devices and contexts
	Purposes           // how many there are
)

// String says it in words.
func (p Purpose) String() string {
	return [Purposes]string{"", "waiting for GPU", "launching", "copying", "memory", "loading code", "starting"}[p%Purposes]
}

// purposeOf says what a function of the driver or the runtime is called for.
func purposeOf(m Module, name string) Purpose {
	if m.Library != Driver && m.Library != Runtime {
		return NoPurpose
	}
	stem := strings.TrimPrefix(strings.TrimPrefix(strings.TrimLeft(name, "_"), "cuda"), "cu")
	for _, r := range []struct {
		purpose Purpose
		part    string // anywhere; with ^ at the beginning
	}{
		{Waiting, "Synchronize"},
		{Waiting, "^StreamWaitValue"},
		{Launching, "Launch"},
		{NoPurpose, "^MemPrefetch"},
		{Copying, "^Memcpy"},
		{Copying, "^Memset"},
		{NoPurpose, "^MemGet"},
		{Allocating, "^Malloc"},
		{Allocating, "^Free"},
		{Allocating, "^Mem"},
		{Allocating, "^Host"},
		{Allocating, "^ArrayCreate"},
		{Allocating, "^Array3DCreate"},
		{Allocating, "^ArrayDestroy"},
		{Allocating, "^MipmappedArrayCreate"},
		{Allocating, "^MipmappedArrayDestroy"},
		{Loading, "^ModuleLoad"},
		{Loading, "^ModuleUnload"},
		{Loading, "^Library"},
		{Loading, "^Link"},
		{Loading, "^RegisterFatBinary"},
		{Loading, "^RegisterFunction"},
		{Loading, "^KernelGetFunction"},
		{Starting, "^Init"},
		{Starting, "^DevicePrimaryCtx"},
		{Starting, "^CtxCreate"},
		{Starting, "^CtxDestroy"},
		{Starting, "^SetDevice"},
		{Starting, "^DeviceReset"},
	} {
		if part, first := strings.CutPrefix(r.part, "^"); first && strings.HasPrefix(stem, part) || !first && strings.Contains(stem, part) {
			return r.purpose
		}
	}
	return NoPurpose
}
