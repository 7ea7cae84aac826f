package view

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/testrec"
	"nvtrace/ioctl"
	"nvtrace/traces"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
)

// TestCostTable: the table of the page is that of the forecast.
func TestCostTable(t *testing.T) {
	b, err := os.ReadFile("../../../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := costTable(); !strings.Contains(string(b), "\n\n"+want+"\n") {
		t.Errorf("docs/cost.md lacks this table:\n%s", want)
	}
}

// TestForecast: a forecast is the sum of what calls, launches and copies cost, whether calls were
// recorded or counted; a launch of the runtime's, which calls the driver, is one launch.
func TestForecast(t *testing.T) {
	forecast := func(events func(give func(*traces.Event))) *Forecast {
		h := testrec.TrainingHeader()
		e, _, _ := clitest.Quiet()
		sink := NewSink(ioctl.NewDecoder(h), e)
		sink.Summarise(h)
		events(sink.Event)
		sink.Finish()
		return sink.Forecast(h.Argv)
	}
	const calls = 5000
	counts := make(map[[2]string]uint64)
	got := forecast(func(give func(*traces.Event)) {
		testrec.Training(calls, func(ev *traces.Event) {
			if ev.Kind == traces.KindCall {
				counts[[2]string{ev.Path, ev.Name}]++
			}
			give(ev)
		})
	})
	launches, copies := uint64(0), uint64(0)
	for k, n := range counts {
		switch k[1] {
		case "cuLaunchKernel":
			launches += n
		case "cuMemcpyDtoDAsync_v2":
			copies += n
		}
	}
	if got.Calls != calls || got.Launch != launches || got.Works != launches+copies || launches == 0 || copies == 0 {
		t.Errorf("%d calls, %d launches, %d with copies; want %d, %d, %d", got.Calls, got.Launch, got.Works, calls, launches, launches+copies)
	}
	for i, w := range wayCosts {
		least := calls*w.of[perCall].least + float64(launches+copies)*w.of[perWork].least + float64(launches)*w.of[perLaunch].least
		if way := got.Ways[i]; way.Flags != w.flags || float64(way.Least) < least-1 || float64(way.Least) > least+1 || way.Most < way.Least {
			t.Errorf("%s: %d to %d ns, want %.0f at least", way.Flags, way.Least, way.Most, least)
		}
	}

	again := forecast(func(give func(*traces.Event)) {
		for k, n := range counts {
			give(&traces.Event{Kind: traces.KindCount, PID: 100, TID: 100, FD: -1, Time: 1000, Path: k[0], Name: k[1], Args: [6]uint64{n, n, 1, 0}})
		}
	})
	if again.Calls != got.Calls || again.Launch != got.Launch || again.Works != got.Works {
		t.Errorf("counted: %+v, recorded: %+v", again, got)
	}
}

// TestForecastOf: of a recording that lacks calls no cost of recording them is told.
func TestForecastOf(t *testing.T) {
	for api, want := range map[string]int{"": cli.ExitFailed, "nccl": cli.ExitFailed, "driver": cli.ExitOK} {
		h := testrec.TrainingHeader()
		h.API = api
		name := filepath.Join(t.TempDir(), "run.nvt")
		b := traces.AppendHeader(nil, h)
		b = traces.AppendEvent(b, &traces.Event{Kind: traces.KindEnd, FD: -1})
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		e, stdout, stderr := clitest.Quiet()
		if got := StatOf(e, &cli.ReadFlags{}, &StatFormat{}, true, name); got != want || (stdout.Len() > 0) != (want == cli.ExitOK) || strings.Contains(stderr.String(), "not recorded") != (api == "") {
			t.Errorf("%q: exit status %d, want %d: %s%s", api, got, want, stdout, stderr)
		}
	}
}
