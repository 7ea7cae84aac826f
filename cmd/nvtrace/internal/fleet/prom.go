package fleet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/prom"
)

// maxPromRanks bounds the ranks that have series of their own.
const maxPromRanks = 64

// Prom returns a report in Prometheus's text format. Ranks have series
// only while something is wrong with them, under the host's name that dcgm-exporter uses.
func (r *Report) Prom(now time.Time) []byte {
	var b bytes.Buffer
	metric := func(name, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %[1]s gauge\n", name, help) }
	job := fmt.Sprintf("job_id=%s", prom.Quote(r.Job))
	metric("nvtrace_fleet_report_timestamp_seconds", "When the ranks were compared last.")
	fmt.Fprintf(&b, "nvtrace_fleet_report_timestamp_seconds{%s} %.3f\n", job, float64(now.UnixNano())/1e9)
	metric("nvtrace_fleet_ranks", "Ranks that have a recording.")
	fmt.Fprintf(&b, "nvtrace_fleet_ranks{%s} %d\n", job, len(r.Ranks))
	if r.World > 0 {
		metric("nvtrace_fleet_world_size", "Ranks that the job has.")
		fmt.Fprintf(&b, "nvtrace_fleet_world_size{%s} %d\n", job, r.World)
	}
	metric("nvtrace_fleet_collectives", "Collectives that were compared.")
	fmt.Fprintf(&b, "nvtrace_fleet_collectives{%s} %d\n", job, r.Collectives)
	if r.Collectives == 0 { // who is slow or hangs is not known
		return b.Bytes()
	}
	metric("nvtrace_fleet_findings", "What is wrong now, by its kind.")
	for _, kind := range []string{Slow, Hang, Mismatch, Paused} {
		n := 0
		for i := range r.Findings {
			if r.Findings[i].Kind == kind {
				n++
			}
		}
		fmt.Fprintf(&b, "nvtrace_fleet_findings{%s,kind=%q} %d\n", job, kind, n)
	}
	r.promRanks(&b, job, metric)
	return b.Bytes()
}

// promRanks writes the series of ranks.
func (r *Report) promRanks(b *bytes.Buffer, job string, metric func(name, help string)) {
	left := maxPromRanks
	for _, kind := range []struct{ kind, name, help string }{
		{Hang, "nvtrace_fleet_rank_hung_seconds", "For how long a rank has hung, or kept others from going on."},
		{Slow, "nvtrace_fleet_rank_waited_seconds", "How long the other ranks have waited for a slow one."},
	} {
		var lines []string
		for i := range r.Findings {
			x := &r.Findings[i]
			seconds := float64(x.Waited) / 1e9
			if x.Kind == Hang {
				seconds = float64(max(r.until-x.Since, 0)) / 1e9
			}
			for k, rank := range x.Ranks {
				if x.Kind != kind.kind || left == 0 {
					continue
				}
				line := fmt.Sprintf("%s{%s,rank=\"%d\",hostname=%s,cause=%s} %.3f\n", kind.name, job, rank, prom.Quote(r.hostOf(x.Files[k])), prom.Quote(x.Cause), seconds)
				same := func(other string) bool {
					return other[:strings.LastIndexByte(other, ' ')] == line[:strings.LastIndexByte(line, ' ')]
				}
				if !slices.ContainsFunc(lines, same) { // two communicators may have it
					lines = append(lines, line)
					left--
				}
			}
		}
		if lines != nil {
			metric(kind.name, kind.help)
			b.WriteString(strings.Join(lines, ""))
		}
	}
}

// hostOf returns the host of a recording.
func (r *Report) hostOf(file string) string {
	for i := range r.Ranks {
		if r.Ranks[i].File == file {
			return r.Ranks[i].Host
		}
	}
	return ""
}
