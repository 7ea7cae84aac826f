//go:build !race

package unwind

// raceEnabled says that the race detector is on.
const raceEnabled = false
