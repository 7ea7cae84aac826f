package emu

// asyncState is a thread's cp.async groups; copies are made at once, so that
// waiting for them is no work, and only mbarrier counts remain.
type asyncState struct{}

func asyncBuilders() map[string]builder  { return map[string]builder{} }
func videoBuilders() map[string]builder  { return map[string]builder{} }
func matrixBuilders() map[string]builder { return map[string]builder{} }
