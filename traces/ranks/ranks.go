// Package ranks knows how launchers tell a process which of several it is: the environment
// variables of torchrun, MPI's libraries, Slurm, Kubernetes and others.
//
// It refuses to know where an environment comes from, and what a rank is asked for.
package ranks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Unknown is a number that no launcher has told.
const Unknown = -1

// Place is what launchers say of a process. Numbers may be [Unknown].
type Place struct {
	Rank  int `json:"rank"`       // among all of the job
	Local int `json:"local_rank"` // among those of the host
	World int `json:"world_size"` // how many there are
	Node  int `json:"node"`       // which of the job's hosts
	// Job is the launcher's name for the job, with its step where it tells one; "": not known.
	Job string `json:"job,omitempty"`
	// Launcher is whose word Rank is: "torchrun", "Slurm"; "": nobody's.
	Launcher string `json:"launcher,omitempty"`
}

// launcher is a convention: its variables, "" where it has none.
type launcher struct {
	name                     string
	rank, local, world, node string
}

// launchers are those that tell ranks. The finer one is first, as programs look first at what their own
// launcher says: under srun, torchrun's RANK is that of the process, and Slurm's that of torchrun.
var launchers = []launcher{
	// What follows torchrun's convention: DeepSpeed, Accelerate, Lightning, Kubeflow's PyTorchJob.
	{"torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", ""},
	{"PMIx", "PMIX_RANK", "", "", ""},
	{"PMI", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", ""}, // MPICH, Intel MPI
	{"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", ""},
	{"MVAPICH", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_SIZE", ""},
	{"PALS", "PALS_RANKID", "PALS_LOCAL_RANKID", "", "PALS_NODEID"},
	{"ALPS", "ALPS_APP_PE", "", "", ""},
	{"JSM", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE", ""},
	{"Flux", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE", ""},
	{"Slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID"},
	// An indexed job has a process a pod; how many there are it does not say.
	{"Kubernetes", "JOB_COMPLETION_INDEX", "", "", ""},
}

// jobs are the variables that name a job, with the one that names a part of it. Ray's workers
// get their ranks from its library when they run; only the job is in their environment.
var jobs = [][2]string{
	{"SLURM_JOB_ID", "SLURM_STEP_ID"},
	{"FLUX_JOB_ID", ""},
	{"PBS_JOBID", ""},
	{"LSB_JOBID", ""},
	{"TORCHELASTIC_RUN_ID", ""},
	{"RAY_JOB_ID", ""},
	{"PMIX_NAMESPACE", ""},
}

// more are variables that say something of a process's place without a part in [Place].
var more = []string{"LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "SLURM_ARRAY_TASK_ID"}

// vars are all of them.
var vars = func() map[string]bool {
	all := make(map[string]bool)
	for _, l := range launchers {
		for _, name := range []string{l.rank, l.local, l.world, l.node} {
			all[name] = true
		}
	}
	for _, j := range jobs {
		all[j[0]], all[j[1]] = true, true
	}
	for _, name := range more {
		all[name] = true
	}
	delete(all, "")
	return all
}()

// Var reports whether an environment variable says something of a process's place.
func Var(name string) bool { return vars[name] }

// maxValue bounds the value of a variable that is taken.
const maxValue = 256

// Pick returns those variables of an environment ("NAME=VALUE") that say something of a process's
// place; nil if there are none.
func Pick(environ []string) map[string]string {
	var picked map[string]string
	for _, s := range environ {
		name, value, ok := strings.Cut(s, "=")
		if !ok || value == "" || len(value) > maxValue || !Var(name) {
			continue
		}
		if picked == nil {
			picked = make(map[string]string)
		}
		picked[name] = value
	}
	return picked
}

// Of returns what variables say.
func Of(picked map[string]string) Place {
	p := Place{Unknown, Unknown, Unknown, Unknown, "", ""}
	number := func(name string) int {
		n, err := strconv.ParseInt(picked[name], 10, 32)
		if name == "" || err != nil || n < 0 {
			return Unknown
		}
		return int(n)
	}
	fill := func(to *int, name string) {
		if *to == Unknown {
			*to = number(name)
		}
	}
	for i := range launchers {
		l := &launchers[i]
		rank := number(l.rank)
		if rank == Unknown || p.Launcher != "" && rank != p.Rank {
			continue // of another rank, the rest is of another process, too
		}
		if p.Launcher == "" {
			p.Launcher, p.Rank = l.name, rank
		}
		fill(&p.Local, l.local)
		fill(&p.World, l.world)
		fill(&p.Node, l.node)
	}
	for _, j := range jobs {
		const unnamed = "none" // torchrun's, where no --rdzv-id is given
		if p.Job = picked[j[0]]; p.Job == "" || p.Job == unnamed {
			p.Job = ""
			continue
		}
		if step := picked[j[1]]; j[1] != "" && step != "" {
			p.Job += "." + step
		}
		break
	}
	return p
}

// Rank returns the rank that an environment tells, or [Unknown].
func Rank(environ []string) int { return Of(Pick(environ)).Rank }

// Names returns the variables in which launchers tell a rank, for errors.
func Names() []string {
	var names []string
	for i := range launchers {
		names = append(names, launchers[i].rank)
	}
	return names
}

// Label is the rank as labels and attributes have it; "" where there is none.
func (p Place) Label() string {
	if p.Rank < 0 {
		return ""
	}
	return strconv.Itoa(p.Rank)
}

// String says it in words: "rank 3 of 16 (local 1, job 4711)"; "" where there is no rank.
func (p Place) String() string {
	if p.Rank == Unknown {
		return ""
	}
	text := fmt.Sprintf("rank %d", p.Rank)
	if p.World != Unknown {
		text += fmt.Sprintf(" of %d", p.World)
	}
	var rest []string
	if p.Local != Unknown {
		rest = append(rest, fmt.Sprintf("local %d", p.Local))
	}
	if p.Job != "" {
		rest = append(rest, "job "+p.Job)
	}
	if len(rest) > 0 {
		text += " (" + strings.Join(rest, ", ") + ")"
	}
	return text
}

// Set is a set of ranks. It is a [flag.Value]: "0,8,16-23".
type Set struct {
	spans [][2]int
	text  string
}

// Set implements [flag.Value].
func (s *Set) Set(list string) error {
	var spans [][2]int
	for word := range strings.SplitSeq(list, ",") {
		from, to, span := strings.Cut(strings.TrimSpace(word), "-")
		if !span {
			to = from
		}
		a, err := strconv.ParseUint(from, 10, 31)
		b, err2 := strconv.ParseUint(to, 10, 31)
		if err != nil || err2 != nil || b < a {
			return fmt.Errorf("%q: want ranks and spans of them, such as 0,8,16-23", word)
		}
		spans = append(spans, [2]int{int(a), int(b)})
	}
	s.spans, s.text = spans, list
	return nil
}

// String implements [flag.Value].
func (s *Set) String() string { return s.text }

// Given reports whether the set was given.
func (s *Set) Given() bool { return len(s.spans) > 0 }

// Has reports whether a rank is in the set.
func (s *Set) Has(rank int) bool {
	return slices.ContainsFunc(s.spans, func(span [2]int) bool { return rank >= span[0] && rank <= span[1] })
}
