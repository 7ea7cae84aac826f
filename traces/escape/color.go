package escape

// The colours of lines, as ANSI SGR sequences: what a call of any kind is shown in. Text of a program can't bring one
// in: they pass through a [Writer] only where it was made with them.
const (
	ColorOff   = "\x1b[0m"
	ColorDim   = "\x1b[2m"  // times
	ColorName  = "\x1b[1m"  // of a call
	ColorSub   = "\x1b[36m" // what a call is about
	ColorError = "\x1b[31m" // results of calls that failed, and what ended a process
	ColorNote  = "\x1b[33m" // what is no call, and results that are not known
)

// Colors returns all of them.
func Colors() []string {
	return []string{ColorOff, ColorDim, ColorName, ColorSub, ColorError, ColorNote}
}
