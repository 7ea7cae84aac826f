package nvattach

// Results of helpers, as the kernel's have them.
const (
	errNoEnt  = -2
	errAgain  = -11
	errTooBig = -7
	errBusy   = -16
	errExist  = -17
	errInval  = -22
	errNoSpc  = -28
)

// Flags of bpf_map_update_elem.
const (
	flagNoExist = 1
	flagExist   = 2
)

// errFault is -EFAULT, what reading memory that is not there returns.
const errFault = -14
