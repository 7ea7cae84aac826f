package run

import (
	"errors"
	"fmt"
	"slices"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/traces"
)

// outputNames are the files of a run, "" for those that are not written.
type outputNames struct{ recording, log, json, maps, tables, prom string }

// names returns the names of a run's outputs. The header says what their patterns stand for.
func (f *runFlags) names(h *traces.Header, getenv func(string) string) (n outputNames, err error) {
	var taken []string
	for _, o := range []struct {
		to         *string
		flag, name string
	}{
		{&n.recording, "-o", f.out},
		{&n.log, "--ioctl-log", f.log.Value},
		{&n.json, "--json", f.json.Value},
		{&n.maps, "--maps", f.attach.mapsFile},
	} {
		if *o.to, err = cli.ExpandName(o.name, h, 1, getenv); err != nil {
			return n, fmt.Errorf("%s=%w", o.flag, err)
		}
		if *o.to == "" {
			continue
		}
		if slices.ContainsFunc(taken, func(other string) bool { return cli.SameFile(other, *o.to) }) {
			return n, fmt.Errorf("%s=%s: another output has this name", o.flag, *o.to)
		}
		taken = append(taken, *o.to)
	}
	switch {
	case f.format != "":
		n.recording, n.tables = "", n.recording
	case n.recording == "-" && f.pid() == 0:
		return n, errors.New("-o -: the program writes to stdout, too, which would damage the recording; name a file or a pipe: mkfifo run.nvt")
	case n.recording == "-" && f.flight > 0:
		return n, errors.New("--flight may write several files: name one with -o FILE")
	case n.recording != "" && n.recording != "-":
		return n, traces.CheckName(n.recording)
	}
	return n, nil
}

// recordedText is what a recording's header says of library calls.
func (f *runFlags) recordedText() string {
	libraries := f.recorded()
	switch {
	case libraries == 0:
		return "none"
	case f.api.Count && f.countedOnly() != nil:
		return libraries.String() + ",count"
	}
	return libraries.String()
}
