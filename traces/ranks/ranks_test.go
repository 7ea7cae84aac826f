package ranks

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOf(t *testing.T) {
	const none = Unknown
	for _, tt := range []struct {
		name    string
		environ []string
		want    Place
	}{
		{"nothing", []string{"HOME=/root", "RANKS=3", "RANK="}, Place{none, none, none, none, "", ""}},
		{"torchrun", []string{"RANK=9", "LOCAL_RANK=1", "WORLD_SIZE=16", "GROUP_RANK=1", "TORCHELASTIC_RUN_ID=run7"}, Place{9, 1, 16, 1, "run7", "torchrun"}},
		{"Slurm", []string{"SLURM_PROCID=3", "SLURM_LOCALID=1", "SLURM_NTASKS=4", "SLURM_NODEID=1", "SLURM_JOB_ID=88", "SLURM_STEP_ID=0"}, Place{3, 1, 4, 1, "88.0", "Slurm"}},
		// torchrun, one task a node: what Slurm says is of torchrun itself.
		{"torchrun under srun", []string{"RANK=9", "LOCAL_RANK=1", "WORLD_SIZE=16", "TORCHELASTIC_RUN_ID=none", "SLURM_PROCID=1", "SLURM_LOCALID=0", "SLURM_NODEID=1", "SLURM_NTASKS=2", "SLURM_JOB_ID=88"}, Place{9, 1, 16, none, "88", "torchrun"}},
		// A task a rank: what PMIx lacks, Slurm has.
		{"PMIx under srun", []string{"PMIX_RANK=3", "PMIX_NAMESPACE=slurm.pmix.88.0", "SLURM_PROCID=3", "SLURM_LOCALID=1", "SLURM_NTASKS=4", "SLURM_JOB_ID=88"}, Place{3, 1, 4, none, "88", "PMIx"}},
		{"Open MPI", []string{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "PMIX_RANK=2", "PMIX_NAMESPACE=1@2"}, Place{2, 0, 4, none, "1@2", "Open MPI"}},
		{"MPICH", []string{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1"}, Place{1, 1, 2, none, "", "PMI"}},
		{"MVAPICH", []string{"MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_LOCAL_RANK=0"}, Place{1, 0, 2, none, "", "MVAPICH"}},
		{"MVAPICH 4", []string{"MVP_COMM_WORLD_RANK=1", "MVP_COMM_WORLD_SIZE=2", "MVP_COMM_WORLD_LOCAL_RANK=0"}, Place{1, 0, 2, none, "", "MVAPICH"}},
		{"Kubernetes", []string{"JOB_COMPLETION_INDEX=5"}, Place{5, none, none, none, "", "Kubernetes"}},
		{"Ray", []string{"RAY_JOB_ID=01000000"}, Place{none, none, none, none, "01000000", ""}},
		{"torchrun alone", []string{"RANK=0", "TORCHELASTIC_RUN_ID=none"}, Place{0, none, none, none, "", "torchrun"}},
		{"no numbers", []string{"RANK=-4", "PMI_RANK=99999999999", "SLURM_PROCID=1"}, Place{1, none, none, none, "", "Slurm"}},
	} {
		if d := cmp.Diff(tt.want, Of(Pick(tt.environ))); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

func TestPick(t *testing.T) {
	long := make([]byte, maxValue+1)
	for i := range long {
		long[i] = '9'
	}
	got := Pick([]string{"RANK=3", "PATH=/bin", "WORLD_SIZE", "PMI_RANK=", "OMPI_COMM_WORLD_RANK=" + string(long)})
	if d := cmp.Diff(map[string]string{"RANK": "3"}, got); d != "" {
		t.Error(d)
	}
	for _, name := range Names() {
		if !Var(name) {
			t.Errorf("%s is not picked", name)
		}
	}
	if Var("") {
		t.Error("the empty name is one")
	}
}

func TestString(t *testing.T) {
	for _, tt := range []struct {
		place Place
		want  string
	}{
		{Of(nil), ""},
		{Place{Rank: 0, Local: Unknown, World: Unknown}, "rank 0"},
		{Place{Rank: 3, Local: 1, World: 16, Job: "88.0"}, "rank 3 of 16 (local 1, job 88.0)"},
	} {
		if got := tt.place.String(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestSet(t *testing.T) {
	var s Set
	if s.Given() || s.Has(0) {
		t.Error("a set that was not given has ranks")
	}
	if err := s.Set("0,8,16-23"); err != nil {
		t.Fatal(err)
	}
	var has []int
	for rank := range 30 {
		if s.Has(rank) {
			has = append(has, rank)
		}
	}
	if d := cmp.Diff([]int{0, 8, 16, 17, 18, 19, 20, 21, 22, 23}, has); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"", "a", "3-1", "-1", "1,,2", "1-2-3", "99999999999"} {
		if err := new(Set).Set(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
