package emu

func matrixBuilders() map[string]builder { return map[string]builder{} }
