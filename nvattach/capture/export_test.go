package capture

// CreateStore makes the module store of a recording, as NewStore and Begin do.
func CreateStore(recording string, limit int64) (*Store, error) {
	s := NewStore(limit)
	return s, s.Begin(recording)
}
