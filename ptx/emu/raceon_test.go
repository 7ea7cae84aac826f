//go:build race

package emu

// raceEnabled says whether the race detector is in the test.
const raceEnabled = true
