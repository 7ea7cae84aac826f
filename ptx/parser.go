package ptx

import "errors"

// ParseOptions changes what [Parse] accepts. The zero value and nil mean the
// defaults.
type ParseOptions struct {
	// MaxDepth limits how deep scopes, vectors, initialisers and expressions
	// nest; 0 means 256.
	MaxDepth int
}

// Parse parses a PTX module. The name is only for messages.
//
// Trailing NUL bytes, as fat binaries have them, are kept and mean nothing. An
// opcode, modifier or directive that is not known is no error. The error is an
// *[Error]: the first place where the text does not fit the grammar.
func Parse(name, src string, o *ParseOptions) (*File, error) {
	return nil, errors.New("not yet")
}

func nextMod(s string) (mod, rest string) { return "", "" }
