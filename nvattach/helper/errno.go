package helper

// Results of helpers, as the kernel's have them.
const (
	ENOENT = -2
	EAGAIN = -11
	E2BIG  = -7
	EBUSY  = -16
	EEXIST = -17
	EINVAL = -22
	ENOSPC = -28
)

// Flags of bpf_map_update_elem.
const (
	FlagNoExist = 1
	FlagExist   = 2
)

// EFAULT is -EFAULT, what reading memory that is not there returns.
const EFAULT = -14
