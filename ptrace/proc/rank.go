package proc

import (
	"slices"
	"strconv"
	"strings"
)

// rankVars are the environment variables in which launchers tell a process its rank among all, the ones that a
// program itself uses first: under srun, torchrun's RANK is the finer one.
var rankVars = []string{
	"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "ALPS_APP_PE",
	"JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "SLURM_PROCID",
}

// RankVars returns the environment variables in which launchers (mpirun, srun, torchrun) tell a
// process its rank among all, those first that a program itself uses first.
func RankVars() []string { return slices.Clone(rankVars) }

// NoRank is the rank of a process that has none.
const NoRank = -1

// Rank returns the rank that an environment tells, or NoRank.
func Rank(environ []string) int {
	for _, name := range rankVars {
		for _, s := range environ {
			if v, ok := strings.CutPrefix(s, name+"="); ok {
				if n, err := strconv.ParseInt(v, 10, 32); err == nil && n >= 0 {
					return int(n)
				}
			}
		}
	}
	return NoRank
}
