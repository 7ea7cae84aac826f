package script

// A Value is a number, or a text.
type Value struct {
	N      int64
	Text   string
	IsText bool
}
