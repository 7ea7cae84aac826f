//go:build race

package script

// raceEnabled says that the race detector is on: blocks that run at the same time read
// what others write, as they do on a GPU.
const raceEnabled = true
