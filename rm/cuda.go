package rm

// cudaOf says which CUDA version the user libraries of a driver line support,
// the number that nvidia-smi prints and cuDriverGetVersion returns. It is not in
// the driver's source. The rows follow the CUDA toolkits' release notes (each
// toolkit comes with the first drivers of a line) and were compared with public
// reports of installed systems for 535, 550, 555, 570, 580, 590 and 595.
var cudaOf = []struct {
	line         uint16
	major, minor int
}{
	{515, 11, 7},
	{520, 11, 8},
	{525, 12, 0},
	{530, 12, 1},
	{535, 12, 2},
	{545, 12, 3},
	{550, 12, 4},
	{555, 12, 5},
	{560, 12, 6},
	{565, 12, 7},
	{570, 12, 8},
	{575, 12, 9},
	{580, 13, 0},
	{590, 13, 1},
	{595, 13, 2},
}

// CUDAVersion returns the CUDA version that drivers of v's line support; false
// if the line is not known. A program built for a newer minor version may run
// too (minor version compatibility), one for a newer major version may not.
func CUDAVersion(v Version) (major, minor int, ok bool) {
	for _, r := range cudaOf {
		if r.line == v.Major {
			return r.major, r.minor, true
		}
	}
	return 0, 0, false
}
