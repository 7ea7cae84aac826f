package proc

import "testing"

func TestRank(t *testing.T) {
	for _, tt := range []struct {
		environ []string
		want    int
	}{
		{nil, NoRank},
		{[]string{"HOME=/", "RANK=3", "SLURM_PROCID=1"}, 3},
		{[]string{"SLURM_PROCID=1", "RANK="}, 1},
		{[]string{"OMPI_COMM_WORLD_RANK=12"}, 12},
		{[]string{"RANK=-4", "XRANK=2"}, NoRank},
		{[]string{"RANK=none", "PMI_RANK=99999999999"}, NoRank},
	} {
		if got := Rank(tt.environ); got != tt.want {
			t.Errorf("%q: %d, want %d", tt.environ, got, tt.want)
		}
	}
}
