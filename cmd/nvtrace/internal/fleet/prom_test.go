package fleet

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// promLine is a sample, as Prometheus's text format has it.
var promLine = regexp.MustCompile(`^[a-z_]+\{([a-z_]+="([^"\\\n]|\\[\\"n])*",?)+\} -?[0-9]+(\.[0-9]+)?$`)

// TestProm: a report as metrics. Names are declared once and before their samples, and no two samples are of one series.
func TestProm(t *testing.T) {
	r := &Report{
		Job: "a\"b\\c\nd", World: 4, Collectives: 9, until: 12e9,
		Ranks: []Rank{{Rank: 2, File: "x", Host: "n1"}, {Rank: 3, File: "y", Host: "n2"}},
		Findings: []Finding{
			{Kind: Hang, Cause: "missing enter", Ranks: []int{2}, Files: []string{"x"}, Since: 4e9},
			{Kind: Hang, Cause: "missing enter", Ranks: []int{2}, Files: []string{"x"}, Since: 5e9},
			{Kind: Slow, Cause: "host", Ranks: []int{3}, Files: []string{"y"}, Waited: 25e8},
		},
	}
	text := string(r.Prom(time.Unix(100, 5e8)))
	const job = `job_id="a\"b\\c\nd"`
	for _, want := range []string{
		"nvtrace_fleet_report_timestamp_seconds{" + job + "} 100.500\n",
		"nvtrace_fleet_world_size{" + job + "} 4\n",
		"nvtrace_fleet_findings{" + job + `,kind="hang"} 2` + "\n",
		"nvtrace_fleet_findings{" + job + `,kind="mismatch"} 0` + "\n",
		"nvtrace_fleet_rank_hung_seconds{" + job + `,rank="2",hostname="n1",cause="missing enter"} 8.000` + "\n",
		"nvtrace_fleet_rank_waited_seconds{" + job + `,rank="3",hostname="n2",cause="host"} 2.500` + "\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %s", want)
		}
	}
	declared, series := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			if declared[name] {
				t.Errorf("%s is declared twice", name)
			}
			declared[name] = true
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		name, _, _ := strings.Cut(line, "{")
		of := line[:strings.LastIndexByte(line, ' ')]
		if !promLine.MatchString(line) || !declared[name] || series[of] {
			t.Errorf("a bad line: %s", line)
		}
		series[of] = true
	}

	// Of many ranks only some have series, and what is not known has none.
	many := &Report{Collectives: 1}
	for i := range 1000 {
		many.Findings = append(many.Findings, Finding{Kind: Slow, Cause: "host", Ranks: []int{i}, Files: []string{fmt.Sprint(i)}})
	}
	if n := strings.Count(string(many.Prom(time.Now())), "waited_seconds{"); n != maxPromRanks {
		t.Errorf("%d ranks have series", n)
	}
	if text := string(new(Report).Prom(time.Now())); strings.Contains(text, "findings") || strings.Contains(text, "world_size") {
		t.Errorf("without collectives: %s", text)
	}
}
