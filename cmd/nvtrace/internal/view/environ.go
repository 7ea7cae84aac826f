package view

import (
	"fmt"
	"io"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/nvattach/api"
)

// variables gathers which environment variables were asked for. It is an observe.Observer.
type variables struct{ of *api.Environment }

// Observe implements observe.Observer.
func (v *variables) Observe(e *observe.Event) { v.of.Add(e.Event, e.Tracker, e.Frame) }

// Finish implements observe.Finisher.
func (v *variables) Finish(e *observe.Event) { v.Observe(e) }

// list returns them; of nil there are none.
func (v *variables) list() []api.Variable {
	if v == nil {
		return nil
	}
	return v.of.Variables()
}

// write draws the table of environment variables.
func (v *variables) write(w io.Writer) error {
	list := v.list()
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no reads of environment variables by CUDA's libraries are in the record (--env records them)")
		return err
	}
	var rows [][]string
	for _, v := range list {
		value, meaning := "", v.Meaning
		switch {
		case v.Value != "":
			value = v.Value
		case v.Set:
			value = "(set)"
		}
		switch {
		case meaning == "" && v.Internal:
			meaning = "(the driver's own, not documented)"
		case v.Known != "" && v.Known != "driver":
			meaning = v.Known + ": " + meaning
		}
		rows = append(rows, []string{v.Name, value, cli.Count(v.Reads), strings.Join(v.By, ", "), meaning})
	}
	return new(Layout).write(w, []table{{"Environment variables that were asked for", []string{"name", "value", ">reads", "by", "meaning"}, rows, 0}})
}
