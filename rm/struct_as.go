package rm

// As returns how a member of a struct with the bytes b is to be read: f itself,
// unless another member says that its number counts something else.
//
// NVB0B5_ALLOCATION_PARAMETERS is the one such struct: engineType is an
// NV2080_ENGINE_TYPE in version 1, and in version 0 a copy engine's number
// (clb0b5sw.h, kernel_ce_context.c).
func (s *Struct) As(f *Field, b []byte) *Field {
	if f.Domain == nil || f.Name != "engineType" || s.Name != "NVB0B5_ALLOCATION_PARAMETERS" {
		return f
	}
	if v, ok := s.Uint("version", b); !ok || v != 0 {
		return f
	}
	g := *f
	g.Domain = &copyEngines
	return &g
}

// copyEngines names the copy engines by their numbers, like the
// NV2080_ENGINE_TYPE_* that stand for them.
var copyEngines = Domain{Prefix: "NV2080_ENGINE_TYPE_", Bound: true, Values: []Value{
	{"COPY0", 0},
	{"COPY1", 1},
	{"COPY2", 2},
	{"COPY3", 3},
	{"COPY4", 4},
	{"COPY5", 5},
	{"COPY6", 6},
	{"COPY7", 7},
	{"COPY8", 8},
	{"COPY9", 9},
	{"COPY10", 10},
	{"COPY11", 11},
	{"COPY12", 12},
	{"COPY13", 13},
	{"COPY14", 14},
	{"COPY15", 15},
	{"COPY16", 16},
	{"COPY17", 17},
	{"COPY18", 18},
	{"COPY19", 19},
}}
