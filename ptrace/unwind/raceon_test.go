//go:build race

package unwind

// raceEnabled says that the race detector is on, which sees the same in any program that is looked at.
const raceEnabled = true
