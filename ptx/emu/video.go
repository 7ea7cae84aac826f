package emu

func videoBuilders() map[string]builder { return map[string]builder{} }
