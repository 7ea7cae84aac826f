//go:build !race

package nvattach

// raceEnabled says that the race detector is on.
const raceEnabled = false
