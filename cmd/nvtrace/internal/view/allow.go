package view

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl/allow"
	"nvtrace/traces/escape"
)

// AllowlistVerb lists what recorded runs need.
func AllowlistVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var format, out string
	var succeeded bool
	fs := cli.NewFlagSet(e, "allowlist", "[--format FORMAT] [flags] run.nvt...")
	rf.Register(fs)
	fs.StringVar(&format, "format", "text", "`FORMAT` text: what nvtrace check reads; json; seccomp: rules for an OCI or Docker profile; nvproxy: Go maps under gVisor's names")
	fs.StringVar(&out, "o", "", "write to `FILE` instead of stdout")
	fs.BoolFunc("json", "as --format=json", func(string) error { format = "json"; return nil })
	fs.BoolVar(&succeeded, "succeeded", false, "leave out what never succeeded")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(names) == 0 || command != nil {
		return e.Fail(cli.ExitUsage, "allowlist wants recordings: nvtrace allowlist run.nvt...")
	}
	if !slices.Contains([]string{"text", "json", "seccomp", "nvproxy"}, format) {
		return e.Fail(cli.ExitUsage, "--format=%s: want text, json, seccomp or nvproxy", format)
	}
	c := allow.NewCollector()
	var runs []allow.Run
	var damage error
	for _, name := range names {
		run := allow.Run{Name: name}
		err := pass(e, &rf, name, func(e *observe.Event) {
			run.Driver = e.Decoder.ABI(e.PID).Asked().String()
			c.Add(e.Event, e.Call, e.Decoder)
		})
		if err != nil && run.Driver == "" {
			return e.Fail(cli.ExitFailed, "%v", err) // nothing could be read
		}
		runs, damage = append(runs, run), errors.Join(damage, err)
	}
	if succeeded {
		c.List.Keep((*allow.Entry).Succeeded)
	}
	c.List.Sort()
	b, err := formatList(c.List, format, runs)
	if err == nil {
		err = writeOut(e, out, b)
	}
	if err := errors.Join(damage, err); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return cli.ExitOK
}

func formatList(l *allow.List, format string, runs []allow.Run) ([]byte, error) {
	switch format {
	case "json":
		return l.AppendJSON(nil, runs)
	case "seccomp":
		return l.AppendSeccomp(nil)
	case "nvproxy":
		return l.AppendNVProxy(nil), nil
	}
	return l.AppendText(nil, runs), nil
}

// writeOut writes to a file, or to stdout where name is empty.
func writeOut(e *cli.Env, name string, b []byte) error {
	if name != "" {
		return e.WriteFile(name, escape.Lines(b), cli.ModeFile)
	}
	_, err := e.Stdout.Write(b)
	return err
}

// lackReport is what check finds in one recording.
type lackReport struct {
	Run   string     `json:"run"`
	Lacks []lackJSON `json:"lacks"`
}

type lackJSON struct {
	What   string  `json:"what"`
	Kind   string  `json:"kind"`
	Device string  `json:"device,omitempty"`
	Nr     string  `json:"nr,omitempty"`
	Name   string  `json:"name,omitempty"`
	Count  uint64  `json:"count"`
	OK     uint64  `json:"ok"`
	First  float64 `json:"first"` // seconds since the recording began
	PID    int32   `json:"pid"`
}

// CheckVerb says what recorded runs use beyond a list.
func CheckVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var asJSON cli.OptString
	var file string
	fs := cli.NewFlagSet(e, "check", "--allow FILE [flags] run.nvt...")
	rf.Register(fs)
	asJSON.RegisterJSON(fs)
	fs.StringVar(&file, "allow", "", "the list, as nvtrace allowlist writes it, `FILE`")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(names) == 0 || command != nil || file == "" {
		return e.Fail(cli.ExitUsage, "check wants --allow FILE and recordings: nvtrace allowlist good.nvt > FILE, then nvtrace check --allow FILE run.nvt")
	}
	list, err := readList(e, file)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	var damage error
	lacking := false
	reports := []lackReport{}
	for _, name := range names {
		k := allow.NewChecker(list)
		damage = errors.Join(damage, pass(e, &rf, name, func(e *observe.Event) { k.Add(e.Event, e.Call, e.Decoder) }))
		r := lackReport{Run: name, Lacks: []lackJSON{}}
		for _, l := range k.Lacks() {
			lacking = true
			r.Lacks = append(r.Lacks, jsonLack(l))
		}
		reports = append(reports, r)
	}
	if asJSON.Given {
		err = e.WriteJSON(e.Stdout, asJSON.Value, reports)
	} else {
		err = writeLacks(e, reports)
	}
	switch err := errors.Join(damage, err); {
	case err != nil:
		return e.Fail(cli.ExitFailed, "%v", err)
	case lacking:
		return cli.ExitDiffers
	}
	return cli.ExitOK
}

func readList(e *cli.Env, file string) (*allow.List, error) {
	file, err := e.Input(file)
	if err != nil {
		return nil, err
	}
	e.Reads(file)
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	l, err := allow.Parse(file, f)
	return l, errors.Join(err, f.Close())
}

func jsonLack(l *allow.Lack) lackJSON {
	j := lackJSON{
		What: l.LackText(), Kind: string(l.Kind), Device: l.Device, Name: l.Name, Count: l.Count, OK: l.OK,
		First: float64(l.Time) / 1e9, PID: l.PID,
	}
	if l.Kind != allow.KindNode && l.Kind != allow.KindMmap {
		j.Nr = fmt.Sprintf("%#x", l.Nr)
	}
	return j
}

// writeLacks prints a line for each lack, in the order of first use.
func writeLacks(e *cli.Env, reports []lackReport) error {
	var b []byte
	for _, r := range reports {
		if len(r.Lacks) == 0 {
			b = fmt.Appendf(b, "%s: lacks nothing\n", r.Run)
			continue
		}
		b = fmt.Appendf(b, "%s: uses what the list does not allow:\n", r.Run)
		for _, l := range r.Lacks {
			b = fmt.Appendf(b, "  %s: first at %.6f by pid %d, %s", l.What, l.First, l.PID, times(l.Count))
			if l.OK == 0 {
				b = append(b, ", never successfully"...)
			}
			b = append(b, '\n')
		}
	}
	_, err := e.Stdout.Write(b)
	return err
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
