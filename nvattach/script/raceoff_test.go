//go:build !race

package script

// raceEnabled says that the race detector is on.
const raceEnabled = false
