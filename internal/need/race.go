//go:build race

package need

// Race says whether the race detector is in the test: it makes programs several times slower, and it sees
// what kernels and the host do to each other's memory, as on a GPU.
const Race = true
