package run

import (
	"errors"
	"strconv"

	"nvtrace/nvattach/session"
)

// verifyFlag is --verify: alone the first launch of each kernel, with a number each
// so many launches.
type verifyFlag int

// String implements flag.Value.
func (v *verifyFlag) String() string { return "" }

// IsBoolFlag lets the flag stand alone.
func (v *verifyFlag) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (v *verifyFlag) Set(s string) error {
	switch s {
	case "true":
		*v = session.VerifyFirst
	case "false":
		*v = 0
	default:
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return errors.New("want how many launches there are from one that is verified to the next")
		}
		*v = verifyFlag(n)
	}
	return nil
}
