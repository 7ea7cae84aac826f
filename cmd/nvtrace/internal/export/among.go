package export

// Among is a recording's place in a timeline of several, which are written one after the other.
type Among struct {
	Index int    // of it, below MaxAmong
	Name  string // stands before the names of its processes
	// At turns its times into those of the timeline. It never goes back.
	At func(int64) int64
	// Begin is the wall clock at the timeline's begin, ns since 1970.
	Begin int64
}

// MaxAmong is how many recordings a timeline can have.
const MaxAmong = 1 << (32 - amongIDs - 1)

// How many bits numbers of sequences, and of tracks and flows, have in each of several recordings.
const (
	amongIDs   = 20
	amongUUIDs = 40
)
