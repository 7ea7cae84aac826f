package rm

import "slices"

// Cause says what the driver's source says about a failure. It exists only for
// statuses that the source ties to a cause; nothing is guessed.
type Cause struct {
	Kind   CauseKind
	Text   string // what the driver refused, in nvtrace's words
	Advice string // what to do about it, "" if the source does not tell
	Source string // the place in the open driver's source that returns it
}

// CauseKind groups causes.
type CauseKind uint8

// The kinds of causes.
const (
	CausePermission  CauseKind = iota + 1 // the caller may not
	CauseCapability                       // a capability file descriptor is missing or wrong
	CauseVersion                          // library and driver do not match
	CauseMemory                           // out of memory
	CauseResources                        // out of something else
	CauseUnsupported                      // this object, GPU or driver has no such thing
	CauseMIG                              // the GPU's partitioning
	CauseState                            // used twice, or not now
	CauseHardware                         // the GPU is gone or broken
)

// The statuses that [Status.Cause] knows (nvstatuscodes.h).
const (
	errGPULost         Status = 0x0f
	errInReset         Status = 0x10
	errResources       Status = 0x1a
	errPermissions     Status = 0x1b
	errInvalidClient   Status = 0x23
	errParamStruct     Status = 0x3a
	errNoMemory        Status = 0x51
	errNotSupported    Status = 0x56
	errResetRequired   Status = 0x62
	errStateInUse      Status = 0x63
	errVersionMismatch Status = 0x6a
	errFabricManager   Status = 0x7a
	errTestOnly        Status = 0x7e
	errFabricNotReady  Status = 0x81
)

// Cause explains a failure of a control command or of the allocation of an
// object, as far as the driver's source does; c and class may be nil. False
// means that the source knows many causes, or none in particular.
func (s Status) Cause(c *Control, class *Class) (Cause, bool) {
	switch s {
	case errPermissions:
		return permission(c, class), true
	case errNotSupported:
		return unsupported(c, class)
	case errStateInUse:
		if class != nil && class.Kind == MIG {
			return Cause{CauseMIG, "the client shares an address space with one that is not subscribed to this GPU instance", "", "gpu_instance_subscription.c"}, true
		}
		return Cause{}, false
	}
	for i := range causes {
		if causes[i].of == s {
			return causes[i].Cause, true
		}
	}
	return Cause{}, false
}

// causes are the statuses with one meaning.
var causes = []struct {
	of Status
	Cause
}{
	{errGPULost, Cause{CauseHardware, "the GPU has fallen off the bus", "look for Xid messages in the kernel log", "rmapi/control.c: API_GPU_ATTACHED_SANITY_CHECK"}},
	{errInReset, Cause{CauseHardware, "the GPU is being reset", "", "gpu/device.c"}},
	{errResources, Cause{CauseResources, "the driver ran out of something other than memory", "", "nvstatuscodes.h"}},
	{errParamStruct, Cause{CauseVersion, "the parameters do not have the size that this driver gives the command", "user library and kernel module must be of one version", "resserv/rs_resource.c: resControlLookup"}},
	{errNoMemory, Cause{CauseMemory, "out of memory", "", "nvstatuscodes.h"}},
	{errResetRequired, Cause{CauseHardware, "the GPU has had a fatal error and takes no new clients", "reset it", "rmapi/alloc_free.c: PDB_PROP_GPU_IN_FATAL_ERROR"}},
	{errVersionMismatch, Cause{CauseVersion, "user library and kernel module are of different versions", "install matching ones, or reload the module after an update", "nvstatuscodes.h"}},
	{errFabricManager, Cause{CauseState, "the fabric manager is not running", "", "nvstatuscodes.h"}},
	{errTestOnly, Cause{CauseUnsupported, "the command is for the driver's own tests, which this build does not enable", "", "rmapi/control.c: RMCTRL_FLAGS_RM_TEST_ONLY_CODE"}},
	{errFabricNotReady, Cause{CauseState, "the NVLink fabric is not up yet", "retry", "nvstatuscodes.h"}},
}

func permission(c *Control, class *Class) Cause {
	const controls, allocs = "rmapi/control.c", "rmapi/alloc_free.c"
	switch {
	case c != nil && slices.Contains(c.FlagNames, "PRIVILEGED"):
		return Cause{CausePermission, "the command is for root", "run as root (CAP_SYS_ADMIN)", controls + ": RMCTRL_FLAGS_PRIVILEGED"}
	case c != nil && c.Exported && !slices.Contains(c.FlagNames, "NON_PRIVILEGED") && !slices.Contains(c.FlagNames, "INTERNAL"):
		return Cause{CausePermission, "the command is for other kernel drivers only", "", controls + ": kernel privileged by default"}
	case c != nil && hasCapability(c.Params), class != nil && hasCapability(class.Alloc):
		return Cause{CauseCapability, "the descriptor in the parameters is not of the capability file that this needs", "open the right file in /dev/nvidia-caps, and see that the process may", "unix/src/os.c: osRmCapAcquire"}
	case c != nil && c.Access != 0:
		return Cause{CausePermission, "the client has not been given the access right that the command needs", "", "resserv/rs_access_map.c"}
	case class != nil:
		return Cause{CausePermission, "the class is for root or for other kernel drivers, or the client lacks an access right", "", allocs}
	}
	return Cause{CausePermission, "the caller lacks a privilege or an access right", "", controls + ", " + allocs + ", resserv/rs_access_map.c"}
}

func hasCapability(s *Struct) bool {
	return s != nil && (s.Lookup("capDescriptor") != nil || s.Lookup("devDescriptor") != nil)
}

func unsupported(c *Control, class *Class) (Cause, bool) {
	switch {
	case class != nil && class.Kind == MIG:
		return Cause{CauseMIG, "MIG is off, or no GPU instance has been made", "enable MIG and create an instance", "gpu_instance_subscription.c"}, true
	case c != nil:
		return Cause{CauseUnsupported, "the object has no such command, or this GPU does not implement it", "", "resserv/rs_resource.c: resControlLookup; stubs of the generated HAL"}, true
	}
	return Cause{}, false
}
