package channels

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// A trail is what a channel was handed, as system memory alone tells it. Rings and USERDs are memory of the GPU, which not every
// kernel and driver lets others read, and which a user may want to be left alone. Each piece of pushbuffer ends by releasing the
// channel's tracker, with a payload one higher than the piece before: so the pieces stand in order without a ring, and the value
// of the tracker says which of them the channel has passed.
type trail struct {
	tracker uint64
	value   uint32 // of the tracker, as it was read last
	steps   []step // by rising payload, one for each payload
	base    uint64 // where the channel's pushbuffer begins, and begins anew when it is full
	region  proc.Mapping
	beside  *trails
}

// trails are those that were found together.
type trails struct {
	again time.Time // when one of them may be searched for once more, which takes long
}

// maxLookWords is how many words are read of all channels of a process: a hostile one has as many and as long pieces as it likes.
const maxLookWords = 1 << 24

// counting counts what is read.
type counting struct {
	Memory
	words int
}

func (c *counting) Read(address uint64, b []byte) error {
	c.words += len(b) / 4
	return c.Memory.Read(address, b)
}

// A step is a piece of pushbuffer that ends with the release of the tracker.
type step struct {
	payload uint32
	address uint64
	words   uint32
}

func (s step) end() uint64 { return s.address + 4*uint64(s.words) }

const (
	maxSteps     = 640     // of a trail that are kept, with those that a watch decodes at once
	maxWaiting   = 1 << 10 // pieces that are not passed; as many as libcuda's rings have entries
	maxNewWords  = 1 << 20 // that a look reads to find out what is new
	maxTrails    = 1 << 9  // of a process
	trailEntries = 1 << 16 // of the ring that a trail stands for: a payload modulo it is a piece's index
	searchPause  = 4       // how many times as long as a search took there is none
	maxRegion    = 1 << 22 // of a pushbuffer behind what is known of it
	readAhead    = 64      // words that are read for a piece at first
)

var errNoTracker = errors.New("the channel's tracker can't be read")

// look reads the tracker, and finds the pieces that came since the last time.
func (t *trail) look(m Memory) error {
	var b [4]byte
	if m.Read(t.tracker, b[:]) != nil {
		return errNoTracker
	}
	t.value = binary.LittleEndian.Uint32(b[:])
	t.ahead(m)
	if !t.behind() {
		return nil
	}
	// Where all pieces between two looks were overwritten, the next one can't be found from the last.
	if now := time.Now(); now.After(t.beside.again) {
		err := t.search(m)
		t.beside.again = time.Now().Add(searchPause * time.Since(now))
		if err != nil {
			return err
		}
	}
	if t.behind() {
		return ErrMoved
	}
	return nil
}

// search looks through the channel's pushbuffer.
func (t *trail) search(m Memory) error {
	maps, err := m.Maps()
	if err != nil {
		return err
	}
	s := spaceOf(maps)
	f := newTrailFinder(m, &s)
	f.scan(&t.region)
	f.chains()
	if found := f.trail(t.tracker); found != nil {
		t.steps = found.steps
		t.ahead(m)
	}
	return nil
}

// behind reports whether the channel has passed pieces that were not found.
func (t *trail) behind() bool { return int32(t.value-t.newest().payload) > 0 }

// ahead takes in the pieces that stand behind the newest one.
func (t *trail) ahead(m Memory) {
	c := counting{Memory: m}
	for n := 0; n < maxSteps+maxWaiting && c.words < maxNewWords && (t.follow(&c, t.newest().end()) || t.follow(&c, t.base)); n++ {
	}
}

func (t *trail) newest() step { return t.steps[len(t.steps)-1] }

// follow takes in the next piece, if it stands at an address.
func (t *trail) follow(m Memory, at uint64) bool {
	r, ok := nextRelease(m, at, t.tracker)
	next := t.newest().payload + 1
	if !ok || r.payload != next {
		return false
	}
	t.steps = append(t.steps, step{next, at, uint32((r.end - at) / 4)})
	if len(t.steps) > 2*(maxSteps+maxWaiting) {
		t.steps = slices.Delete(t.steps, 0, len(t.steps)-maxSteps-maxWaiting)
	}
	return true
}

// userData is what the channel's USERD would tell of it, as far as that is known: which pieces are there, and which of them the
// channel has passed.
func (t *trail) userData() channel.UserData {
	return channel.UserData{GPPut: t.index(t.newest().payload + 1), GPGet: t.index(t.value + 1)}
}

// index is that of a payload's piece: the first piece of a channel has 1, and is the ring's first entry.
func (t *trail) index(payload uint32) uint32 { return (payload - 1) % trailEntries }

// entries returns the n entries before index end that a ring would have. Those that are not known are zero.
func (t *trail) entries(m Memory, end uint32, n int) ([]channel.Entry, error) {
	list := make([]channel.Entry, n)
	// Some may not be there yet.
	behind := func() int { return int(int16(t.index(t.newest().payload+1) - end)) } // those that are wanted
	if behind() < 0 {
		if err := t.look(m); err != nil {
			return nil, err
		}
	}
	n += behind()
	for i := range list {
		k := len(t.steps) - n + i
		if k >= 0 && k < len(t.steps) {
			list[i] = channel.Entry{Address: t.steps[k].address, Words: t.steps[k].words}
		}
	}
	return list, nil
}

// A mark is a release of a semaphore with the GPU's time, as each piece ends with one.
type mark struct {
	at, end   uint64 // of its commands
	semaphore uint64
	payload   uint32
}

// nextRelease returns the first release of a tracker behind commands that begin at an address; 0: of any semaphore.
func nextRelease(m Memory, at, tracker uint64) (r mark, ok bool) {
	const more = 8 // times as many words, if those that were read are not enough
	for n := readAhead; ; n = min(more*n, maxPieceWords) {
		words := wordsUpTo(m, at, n)
		for c := range channel.Commands(words, at) {
			if c.Cut {
				break
			}
			if !sound(&c) {
				return mark{}, false
			}
			if r, ok = releaseAt(words[(c.Address-at)/4:], c.Address); ok && (tracker == 0 || r.semaphore == tracker) {
				return r, true
			}
		}
		if len(words) < n || n == maxPieceWords {
			return mark{}, false
		}
	}
}

// sound reports whether a command is one that programs write.
func sound(c *channel.Command) bool {
	switch c.Op {
	case channel.Increasing, channel.NotIncreasing, channel.IncreaseOnce:
		return len(c.Data) > 0
	}
	return c.Op == channel.Immediate
}

// wordsUpTo reads n words, or as many as there are.
func wordsUpTo(m Memory, at uint64, n int) []uint32 {
	for ; n > 0; n /= 2 {
		if words, err := readWords(m, at, n); err == nil {
			return words
		}
	}
	return nil
}

// releaseAt reads words that begin with a header as a release with the GPU's time.
func releaseAt(words []uint32, at uint64) (found mark, ok bool) {
	if len(words) == 0 || !mayRelease(words[0]) {
		return mark{}, false
	}
	r := readers.Get().(*channel.Reader)
	defer readers.Put(r)
	*r = channel.Reader{Subchannels: unclassified()}
	words = words[:min(len(words), releaseWords)]
	for c := range channel.Commands(words, at) {
		if c.Cut || !sound(&c) {
			return mark{}, false
		}
		first := int(c.Address-at) / 4
		end := first + 1
		if c.Op != channel.Immediate {
			end += len(c.Data)
		}
		done := false
		r.Read(words[first:end], c.Address, func(w channel.Work) bool {
			s := w.Semaphore
			ok = (w.Kind == channel.Release || w.Kind == channel.Move) && s.Timed && s.Address != 0 && s.Address%trackerSize == 0
			found, done = mark{at, at + 4*uint64(end), s.Address, uint32(s.Payload)}, true
			return false
		})
		if done {
			break
		}
	}
	return found, ok
}

// readers are to be used again: a pushbuffer has many releases.
var readers = sync.Pool{New: func() any { return new(channel.Reader) }}

// unclassified are the classes by which a channel is read whose own are not known.
var unclassified = sync.OnceValue(func() channel.Subchannels {
	var probe Channel
	probe.assume(architectures[2])
	return probe.subchannels
})

// releasing are the methods by which a release can begin, by their offsets / 4.
var releasing = sync.OnceValue(func() *[methodCount]bool {
	set := new([methodCount]bool)
	for _, number := range slices.Concat(architectures[2][:], architectures[0][:]) {
		class := channel.ClassOf(number)
		for i := range set {
			if m, _ := class.Method(uint16(4 * i)); m != nil {
				switch m.Name {
				case "SEM_ADDR_LO", "SET_SEMAPHORE_A", "SET_REPORT_SEMAPHORE_A", "SET_REPORT_SEMAPHORE_ADDRESS_UPPER":
					set[i] = true
				}
			}
		}
	}
	return set
})

// methodCount is how many methods a header can name.
const methodCount = 1 << 12

// mayRelease reports whether a release can begin with a header.
func mayRelease(header uint32) bool {
	return channel.Op(header>>29) == channel.Increasing && header>>16&0x1fff > 1 && releasing()[header%methodCount]
}

// A trailFinder looks for the channels of a process in its system memory.
type trailFinder struct {
	counting
	system    []proc.Mapping
	marks     []mark             // by address, of the payloads around what their semaphores have now
	extent    map[uint64]*extent // by semaphore
	values    map[uint64]uint32
	tries     int
	at        map[uint64]int // marks by their address
	others    map[uint64]bool
	byTracker map[uint64][]ended
}

// An extent is where releases of a semaphore stand, of any payload.
type extent struct {
	first mark
	last  uint64 // end
}

// An ended is a piece that ends with a mark.
type ended struct {
	mark
	from uint64 // where it begins; 0: not known
}

const (
	maxMarks      = 1 << 17
	maxTries      = 1 << 20 // headers that may begin a release
	maxTrailBytes = 1 << 29 // of system memory that are searched
	maxTrailWords = 1 << 25 // that are read for pieces
	maxGPUAddress = 1 << 40 // which addresses in rings are below
	maxBack       = 64      // pages before a piece's end in which it may begin
	releaseWords  = 16      // a release has no more
	trackerSize   = 16
)

// findTrails looks for the channels of a process in its system memory. What it believes are pieces that follow one another, each
// of commands up to the release of one tracker, whose payloads count, and of which the tracker's value is one.
func findTrails(m Memory, s *space) []*Channel {
	f := newTrailFinder(m, s)
	searched := uint64(0)
	for i := range s.system {
		mapping := &s.system[i]
		size := mapping.End - mapping.Start
		if searched += size; mapping.End <= maxGPUAddress && size <= maxGPUMapping && searched <= maxTrailBytes {
			f.scan(mapping)
		}
	}
	f.chains()
	var list []*Channel
	beside := new(trails)
	of := counting{Memory: m}
	for _, tracker := range slices.Sorted(maps.Keys(f.byTracker)) {
		if f.others[tracker] || len(list) >= maxTrails || of.words > maxLookWords {
			continue
		}
		if t := f.trail(tracker); t != nil {
			t.beside = beside
			if was := t.value; t.look(&of) != nil && t.value == was {
				continue // what its tracker has was never released, nor did it go on
			}
			list = append(list, &Channel{Device: s.device(), Entries: trailEntries, trail: t})
		}
	}
	Sort(list)
	return list
}

func newTrailFinder(m Memory, s *space) trailFinder {
	return trailFinder{
		counting: counting{Memory: m}, system: s.system, at: map[uint64]int{}, others: map[uint64]bool{}, byTracker: map[uint64][]ended{},
		extent: map[uint64]*extent{}, values: map[uint64]uint32{},
	}
}

// scan notes the marks in a mapping.
func (f *trailFinder) scan(mapping *proc.Mapping) {
	const chunk, beyond = 1 << 20, 4 * releaseWords
	b := make([]byte, chunk+beyond)
	set := releasing()
	for at := mapping.Start; at < mapping.End; at += chunk {
		b := b[:min(uint64(len(b)), mapping.End-at)]
		if f.Memory.Read(at, b) != nil {
			continue
		}
		for i := 0; i+4 <= min(len(b), chunk); i += 4 {
			if i%8 == 0 && i+8 <= len(b) && binary.LittleEndian.Uint64(b[i:]) == 0 {
				i += 4
				continue
			}
			header := binary.LittleEndian.Uint32(b[i:])
			if header>>29 != uint32(channel.Increasing) || !set[header%methodCount] {
				continue
			}
			if f.tries++; f.tries > maxTries {
				return
			}
			var words [releaseWords]uint32
			n := min(releaseWords, (len(b)-i)/4)
			for k := range n {
				words[k] = binary.LittleEndian.Uint32(b[i+4*k:])
			}
			if r, ok := releaseAt(words[:n], at+uint64(i)); ok && f.near(&r) && len(f.marks) < maxMarks {
				f.at[r.at] = len(f.marks)
				f.marks = append(f.marks, r)
			}
		}
	}
}

// near reports whether a release is near to what its semaphore has now: older ones say nothing.
func (f *trailFinder) near(r *mark) bool {
	value, known := f.values[r.semaphore]
	e := f.extent[r.semaphore]
	if e == nil {
		e = &extent{first: *r}
		f.extent[r.semaphore] = e
	}
	e.last = max(e.last, r.end)
	if !known {
		m := proc.At(f.system, r.semaphore)
		var b [4]byte
		if m == nil || !m.Contains(r.semaphore, trackerSize) || f.Read(r.semaphore, b[:]) != nil {
			return false
		}
		value = binary.LittleEndian.Uint32(b[:])
		f.values[r.semaphore] = value
	}
	d := int32(r.payload - value)
	return -maxSteps < d && d <= maxWaiting
}

// chains finds out which marks follow one another with nothing but commands between them, and so which pieces there are. Of
// the semaphores of a chain, the tracker is the one that is released most often: at the end of each piece, and so last.
func (f *trailFinder) chains() {
	next, before := make([]int, len(f.marks)), make([]int, len(f.marks))
	for i := range f.marks {
		next[i], before[i] = -1, -1
	}
	for i := range f.marks {
		if f.words > maxTrailWords {
			break
		}
		r, ok := nextRelease(f, f.marks[i].end, 0)
		if k, known := f.at[r.at]; ok && known {
			next[i], before[k] = k, i // the nearest is the last
		}
	}
	for first := range f.marks {
		if k := before[first]; k >= 0 && next[k] == first {
			continue
		}
		var chain []int
		for i := first; i >= 0; i = next[i] {
			if chain = append(chain, i); next[i] >= 0 && before[next[i]] != i {
				break
			}
		}
		f.chain(chain)
	}
}

// chain takes in the pieces of a chain of marks.
func (f *trailFinder) chain(chain []int) {
	count := map[uint64]int{}
	tracker := uint64(0)
	for _, i := range chain {
		s := f.marks[i].semaphore
		if count[s]++; tracker == 0 || count[s] >= count[tracker] {
			tracker = s
		}
	}
	for s := range count {
		if s != tracker && count[tracker] > 1 {
			f.others[s] = true
		}
	}
	from := uint64(0)
	for _, i := range chain {
		if r := f.marks[i]; r.semaphore == tracker {
			f.byTracker[tracker] = append(f.byTracker[tracker], ended{r, from})
			from = r.end
		}
	}
}

// trail makes a trail of the pieces that release a tracker; nil: they prove none.
func (f *trailFinder) trail(tracker uint64) *trail {
	var b [trackerSize]byte
	if f.Read(tracker, b[:]) != nil {
		return nil
	}
	// The value that it had when its pieces were searched for: what came since is behind them.
	value, stamp := f.values[tracker], binary.LittleEndian.Uint64(b[8:])
	byPayload := map[uint32]ended{}
	for _, p := range f.byTracker[tracker] {
		if was, ok := byPayload[p.payload]; !ok || was.from == 0 {
			byPayload[p.payload] = p
		}
	}
	at := func(payload uint32) (step, bool) {
		p, ok := byPayload[payload]
		if ok && p.from == 0 {
			p.from, ok = f.beginning(&p.mark)
			byPayload[payload] = p
		}
		return step{payload, p.from, uint32((p.end - p.from) / 4)}, ok && p.from != 0
	}
	e := f.extent[tracker]
	if e == nil {
		return nil
	}
	t := &trail{tracker: tracker, value: value, base: e.first.at}
	if begin, ok := f.beginning(&e.first); ok {
		t.base = begin
	}
	t.region = proc.Mapping{Start: t.base &^ (pageSize - 1), End: e.last + maxRegion}
	if mapping := proc.At(f.system, t.base); mapping != nil {
		t.region.End = min(t.region.End, mapping.End)
	}
	newest := value // or the latest before it: the channel may have gone on since its pushbuffer was searched
	for _, ok := at(value + 1); !ok && value-newest < maxSteps; newest-- {
		if _, ok = at(newest); ok {
			break
		}
	}
	for p := newest; len(t.steps) < maxSteps; p-- {
		s, ok := at(p)
		if !ok {
			break
		}
		t.steps = append(t.steps, s)
	}
	slices.Reverse(t.steps)
	for p := newest + 1; ; p++ {
		s, ok := at(p)
		if !ok {
			break
		}
		t.steps = append(t.steps, s)
	}
	proven := len(t.steps) > 1 || len(t.steps) == 1 && t.steps[0].payload == 1
	if !proven || value != 0 && stamp == 0 {
		return nil
	}
	return t
}

// beginning finds out where a piece begins of which only the end is known: the first one of a pushbuffer is at the beginning of
// a page.
func (f *trailFinder) beginning(r *mark) (uint64, bool) {
	mapping := proc.At(f.system, r.at)
	for back := range uint64(maxBack) {
		page := r.at&^(pageSize-1) - back*pageSize
		if f.words > maxTrailWords || mapping == nil || page < mapping.Start || page > r.at {
			break
		}
		if found, ok := nextRelease(f, page, r.semaphore); ok {
			if found.at != r.at {
				break
			}
			return page, true
		}
	}
	return 0, false
}
