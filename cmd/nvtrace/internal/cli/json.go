package cli

import (
	"encoding/json"
	"errors"
	"io"

	"nvtrace/traces/escape"
)

// Answer writes a verb's result, as JSON or as text does, and returns the
// status. damage is what was wrong with the recording.
func (e *Env) Answer(asJSON *OptString, damage error, result any, text func() error) int {
	write := text
	if asJSON.Given {
		write = func() error { return e.WriteJSON(e.Stdout, asJSON.Value, result) }
	}
	if err := errors.Join(damage, write()); err != nil {
		return e.Fail(ExitFailed, "%v", err)
	}
	return ExitOK
}

// A Values takes results as they are, beside their text: what they are made of can't be seen in that.
type Values interface{ Value(v any) }

// WriteJSON prints v to a file, or to def where name is empty.
func (e *Env) WriteJSON(def io.Writer, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if to, ok := Beneath(def).(Values); ok {
		to.Value(v)
	}
	if name != "" {
		return e.WriteFile(name, escape.Lines(b), ModeFile)
	}
	_, err = def.Write(b)
	return err
}
