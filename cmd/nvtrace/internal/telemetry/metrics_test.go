package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
)

// exported returns the metrics that there are, with their labels.
func exported(t *testing.T) map[string]string {
	t.Helper()
	m := &Metrics{
		header:  &traces.Header{Start: 1, PID: 7, Host: "node", Driver: "580.1", Tool: "v", GPUs: []string{"GPU-1"}, Rank: map[string]string{"RANK": "3"}},
		process: nccl.NewProcess(), meter: view.NewMeter(), seen: seen{true, true, true, true},
	}
	m.place.Rank, m.place.Job, m.process.GPU = 3, "4711", true
	r := &fleet.Report{Job: "4711", World: 2, Collectives: 1, Findings: []fleet.Finding{
		{Kind: fleet.Hang, Ranks: []int{1}, Files: []string{"a"}}, {Kind: fleet.Slow, Ranks: []int{1}, Files: []string{"a"}},
	}}
	names := make(map[string]string)
	declared := make(map[string]bool)
	for line := range strings.Lines(string(m.Measure(time.Now()).Text()) + string(r.Prom(time.Now()))) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(strings.TrimSpace(name), " ")
			if declared[name] || strings.HasSuffix(name, "_total") != (kind == "counter") {
				t.Errorf("%s %s: declared twice, or a counter without _total", name, kind)
			}
			declared[name] = true
		} else if line[0] != '#' {
			name, labels, _ := strings.Cut(line, "{")
			if !declared[name] {
				t.Errorf("%s is not declared", name)
			}
			names[name] += labels
		}
	}
	for _, label := range []string{`job_id="4711"`, `rank="3"`, `hostname="node"`, `UUID="GPU-1"`} {
		if !strings.Contains(names["nvtrace_kernel_launches_total"], label) {
			t.Errorf("no label %s: %s", label, names["nvtrace_kernel_launches_total"])
		}
	}
	return names
}

// TestDashboard: the dashboard asks for metrics that there are, by labels that they have, and the page names all of them.
func TestDashboard(t *testing.T) {
	names := exported(t)
	b, err := os.ReadFile("../../../../packaging/grafana/nvtrace.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil || len(d.Panels) == 0 {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			for _, name := range regexp.MustCompile(`nvtrace_\w+`).FindAllString(q.Expr, -1) {
				if names[name] == "" {
					t.Errorf("%s: there is no metric %s", p.Title, name)
				}
				for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(q.LegendFormat, -1) {
					if !strings.Contains(names[name], label[1]+`="`) && label[1] != "gpu" { // which dcgm-exporter has
						t.Errorf("%s: %s has no label %s: %s", p.Title, name, label[1], names[name])
					}
				}
			}
		}
	}
	page, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range names {
		if !strings.Contains(string(page), "`"+name+"`") && !strings.HasPrefix(name, "nvtrace_fleet_") {
			t.Errorf("the page lacks %s", name)
		}
	}
}
