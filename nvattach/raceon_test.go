//go:build race

package nvattach

// raceEnabled says that the race detector is on, which sees the host read memory
// that a kernel writes: what a GPU's host does.
const raceEnabled = true
