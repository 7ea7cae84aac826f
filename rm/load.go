package rm

import (
	_ "embed"
	"sync"
	"sync/atomic"

	"nvtrace/rm/internal/wire"
)

// packed holds the tables of all versions; package wire describes its form. As
// a string it stays in the binary's read-only pages, and the names that the
// tables refer to are parts of it, not copies.
//
//go:generate go run nvtrace/rm/internal/gen pack facts ztables.bin
//go:embed ztables.bin
var packed string

// known opens the embedded tables, once, when a version is first asked for.
var known = sync.OnceValue(func() *tables {
	t, err := open(packed)
	if err != nil {
		panic("BUG: embedded driver tables: " + err.Error())
	}
	return t
})

// tables is the data of all versions. What it hands out is decoded when it is
// first asked for and then kept; equal facts of several versions are one object.
type tables struct {
	data     string
	strings  blobs
	versions []Version
	tab      [wire.Sections]table

	domains  pool[Domain]
	structs  pool[Struct]
	controls pool[Control]
	classes  pool[Class]
	escapes  pool[Escape]
	requests pool[Request]
	names    blobs // records of one string: statuses and categories
}

// pool is a section of records with the objects made of them.
type pool[T any] struct {
	recs blobs
	made []atomic.Pointer[T]
}

// get returns the object of a record, making it at the first call. Should two
// goroutines make it at once, both get the same.
func (p *pool[T]) get(t *tables, n uint32, decode func(*tables, *reader) *T) *T {
	if n >= uint32(len(p.made)) {
		return nil
	}
	if x := p.made[n].Load(); x != nil {
		return x
	}
	x := decode(t, &reader{s: p.recs.at(n), self: n})
	if x == nil || p.made[n].CompareAndSwap(nil, x) {
		return x
	}
	return p.made[n].Load()
}

func newPool[T any](b blobs) pool[T] {
	return pool[T]{recs: b, made: make([]atomic.Pointer[T], b.n)}
}

func (t *tables) str(id uint64) string {
	if id >= uint64(t.strings.n) {
		return ""
	}
	return t.strings.at(uint32(id))
}

func (t *tables) domain(n uint32) *Domain   { return t.domains.get(t, n, decodeDomain) }
func (t *tables) structOf(n uint32) *Struct { return t.structs.get(t, n, decodeStruct) }
func (t *tables) control(n uint32) *Control { return t.controls.get(t, n, decodeControl) }
func (t *tables) class(n uint32) *Class     { return t.classes.get(t, n, decodeClass) }
func (t *tables) escape(n uint32) *Escape   { return t.escapes.get(t, n, decodeEscape) }
func (t *tables) request(n uint32) *Request { return t.requests.get(t, n, decodeRequest) }

// name returns a record that is a single string.
func (t *tables) name(n uint32) string {
	r := reader{s: t.names.at(n)}
	return t.str(r.num())
}
