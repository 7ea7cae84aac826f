package rm

// cudaOf says which CUDA version the user libraries of a driver line support,
// the number that nvidia-smi prints and cuDriverGetVersion returns. It is not in
// the driver's source, so every row says where it was seen. The others were not
// seen in use: they follow NVIDIA's pairing of toolkits and drivers, where each
// toolkit came with the first drivers of a line.
var cudaOf = []struct {
	line         uint16
	major, minor int
	seen         string
}{
	{515, 11, 7, ""},
	{520, 11, 8, ""},
	{525, 12, 0, ""},
	{530, 12, 1, ""},
	{535, 12, 2, "users' reports: 535.113"},
	{545, 12, 3, ""},
	{550, 12, 4, "nvidia-smi of 550.40.07 in a user's report"},
	{555, 12, 5, "users' reports"},
	{560, 12, 6, ""},
	{565, 12, 7, ""},
	{570, 12, 8, "users' reports: 570.133.07"},
	{575, 12, 9, ""},
	{580, 13, 0, "nvidia-smi of 580.159.04, on the machine of the recordings"},
	{590, 13, 1, ""},
	{595, 13, 2, ""},
}

// CUDAVersion returns the CUDA version that drivers of v's line support; false
// if the line is not known. A program built for a newer minor version may run
// too (minor version compatibility), one for a newer major version may not.
// Some rows were not seen in use (see cuda.go).
func CUDAVersion(v Version) (major, minor int, ok bool) {
	for _, r := range cudaOf {
		if r.line == v.Major {
			return r.major, r.minor, true
		}
	}
	return 0, 0, false
}
