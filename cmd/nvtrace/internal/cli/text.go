package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/units"
	"nvtrace/rm"
	"nvtrace/traces/escape"
)

// Printable returns a string that came from the traced program, a recording or an
// object without what could steer a terminal or look like a line of nvtrace's.
func Printable(s string) string { return escape.String(s) }

// Count prints a number; zero is left out, so that what happened stands out.
func Count(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// Duration prints ns with three significant digits; zero is left out.
func Duration(ns int64) string {
	if ns == 0 {
		return ""
	}
	d := time.Duration(ns)
	for _, unit := range []struct {
		time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d >= unit.Duration {
			digits := 2
			for v := d / unit.Duration; v >= 10 && digits > 0; v /= 10 {
				digits--
			}
			return strconv.FormatFloat(float64(d)/float64(unit.Duration), 'f', digits, 64) + " " + unit.name
		}
	}
	return strconv.FormatInt(ns, 10) + " ns"
}

// IsTerminal reports whether an output is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := Beneath(w).(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// SizeText prints a number of bytes as a person reads it.
func SizeText(n uint64) string { return units.Bytes(n) }

// ShellText joins words as a shell takes them.
func ShellText(words []string) string {
	list := make([]string, 0, len(words))
	for _, w := range words {
		if strings.ContainsAny(w, " \t\n'\"*?[]{}()<>|&;$`\\!#~") || w == "" {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		list = append(list, w)
	}
	return strings.Join(list, " ")
}

// DriverText is a driver's version, with that of CUDA that its user libraries
// support: "580.159.04 (CUDA 13.0)".
func DriverText(driver string) string {
	if v, err := rm.ParseVersion(driver); err == nil {
		if major, minor, ok := rm.CUDAVersion(v); ok {
			return fmt.Sprintf("%s (CUDA %d.%d)", driver, major, minor)
		}
	}
	return Printable(driver)
}

// OrZero is a duration in a sentence, where zero is not left out.
func OrZero(s string) string {
	if s == "" {
		return "0 s"
	}
	return s
}

// SomeOf lists the first most of some names, and says how many more there are.
func SomeOf(names []string, most int) string {
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// CountOf is "1 kernel", "5 kernels".
func CountOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Grouped writes a number with commas.
func Grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Counted is "1 call", "5 calls".
func Counted(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// PercentText is a part of a whole: "83.1 %".
func PercentText(part, whole int64) string {
	if whole <= 0 {
		return "100 %"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// CountedAs is counted for words whose plural is not made by an s.
func CountedAs(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
