package rm

import "fmt"

// Status is the resource manager's result of a call; ioctl(2) itself succeeds
// either way.
type Status uint32

// OK is success.
const OK Status = 0

// String returns the driver's name of the status, "NV_STATUS(0x1234)" if it is
// not known.
func (s Status) String() string { return fmt.Sprintf("NV_STATUS(%#x)", uint32(s)) }
