package api

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"nvtrace/traces"
)

// Owners that are no libraries of CUDA.
const (
	// OwnerProgram has what the program itself allocates, and a framework in it where stacks do not tell that.
	OwnerProgram = "program"
	// OwnerContext has what the driver holds beyond what it was asked for: contexts, code, the rest of its pools.
	OwnerContext = "context"
)

// frameworks keep pools of memory, from which their programs get it. Files tell them, by how they begin, or by a folder.
var frameworks = []struct{ owner, file, folder string }{
	{"pytorch", "libc10", "/torch/"},
	{"pytorch", "libtorch", "/torch/"},
	{"jax", "xla_cuda_plugin", "/jaxlib/"},
	{"jax", "pjrt_c_api_gpu", "/jax_plugins/"},
	{"cupy", "libcupy", "/cupy/"},
	{"cupy", "libcupy", "/cupy_backends/"},
	{"tensorflow", "libtensorflow", "/tensorflow/"},
	{"onnxruntime", "libonnxruntime", "/onnxruntime/"},
}

// workspaces are parts of names of PyTorch's functions that get memory for cuBLAS.
var workspaces = []string{"getNewWorkspace", "getCUDABlasLtWorkspace", "getCurrentCUDABlasHandle"}

// OwnerMemory is GPU memory that a library, a framework or the program itself has allocated.
type OwnerMemory struct {
	PID   int32  `json:"pid"`
	Owner string `json:"owner"` // nccl, cublas, …; pytorch and other frameworks; program; context
	Live  uint64 `json:"live"`  // bytes: at the first failure for want of memory, else at the end
	Most  uint64 `json:"most"`  // at once
	Count uint64 `json:"count"` // allocations
}

type ownerKey struct {
	pid  int32
	name string
}

// owner says whose a call that allocates is: the innermost library's of CUDA that is around it, else, by its stack, the innermost
// library's or framework's.
func owner(f *Frame, byStack string) string {
	for p := f.Parent; p != nil; p = p.Parent {
		if o := ownerLibrary(p.Module.Library); o != "" {
			return o
		}
	}
	return cmp.Or(byStack, OwnerProgram)
}

// ownerLibrary is a library as an owner; "": it allocates for whoever calls it.
func ownerLibrary(l Library) string {
	switch l {
	case Unknown, Driver, Runtime, NVTX, LibC:
		return ""
	case CuBLASLt:
		l = CuBLAS // of which it is a part
	}
	return l.String()
}

// stackOwner says whose a call is by its stack, "" where that has nobody's code in it but the program's.
func stackOwner(frames []traces.StackFrame) (owner string) {
	for i := range frames {
		f := &frames[i]
		if owner == "" {
			if f.Language == traces.LanguageNative {
				owner = ownerLibrary(Match(path.Base(f.File)).Library)
			}
			if owner == "" {
				owner = framework(f)
			}
			if owner != "" && owner != "pytorch" {
				return owner
			}
		}
		if owner == "pytorch" && slices.ContainsFunc(workspaces, func(part string) bool { return strings.Contains(f.Func, part) }) {
			return CuBLAS.String()
		}
	}
	return owner
}

// framework is the framework that a function is of; "": none.
func framework(f *traces.StackFrame) string {
	base := path.Base(f.File)
	for _, x := range frameworks {
		if f.Language == traces.LanguageNative && strings.HasPrefix(base, x.file) || strings.Contains(f.File, "-packages"+x.folder) {
			return x.owner
		}
	}
	return ""
}

// ownerOf returns what an owner has. Beyond the bound it is one that nobody looks at.
func (a *Allocations) ownerOf(pid int32, name string) *OwnerMemory {
	k := ownerKey{pid, name}
	o := a.owners[k]
	if o == nil {
		o = &OwnerMemory{PID: pid, Owner: name}
		if len(a.owners) < maxLines {
			a.owners[k] = o
		}
	}
	return o
}

// OutOfMemory reports whether an allocation has failed for want of memory.
func (a *Allocations) OutOfMemory() bool { return a.failed != nil }

// Owners returns who has allocated memory, who had most first: as it is now, or was at the first failure for want of memory.
func (a *Allocations) Owners() []OwnerMemory {
	if a.failed != nil {
		return a.owned
	}
	return a.Now()
}

// Now is Owners, whatever has failed.
func (a *Allocations) Now() (list []OwnerMemory) {
	called := false
	for k, o := range a.owners {
		if called = called || o.Count > 0; k.name == OwnerContext && o.Most == 0 {
			continue // what the driver holds was not recorded
		}
		list = append(list, *o)
	}
	if !called { // calls that allocate were not recorded
		return nil
	}
	slices.SortFunc(list, func(x, y OwnerMemory) int {
		return cmp.Or(cmp.Compare(y.Most, x.Most), cmp.Compare(x.PID, y.PID), strings.Compare(x.Owner, y.Owner))
	})
	return list
}

// Context takes in how much GPU memory a process has of the driver, in all. It is for when no call that allocates is in
// it (see [Tracker.Allocating]): what is beyond the calls' is the driver's own. Managed memory is not of that memory.
func (a *Allocations) Context(pid int32, all uint64) {
	asked := uint64(0)
	for k, o := range a.owners {
		if k.pid == pid && k.name != OwnerContext {
			asked += o.Live
		}
	}
	asked -= min(a.unheld[pid], asked)
	o := a.ownerOf(pid, OwnerContext)
	o.Live = all - min(asked, all)
	o.Most = max(o.Most, o.Live)
}
