package rm

import "nvtrace/rm/internal/wire"

// This file makes the exported objects of their records. A record that does
// not read gives nil.

func (t *tables) text(r *reader) string { return t.str(r.num()) }

func (t *tables) texts(r *reader) []string {
	n := r.count()
	if n == 0 {
		return nil
	}
	out := make([]string, n)
	for i := range out {
		out[i] = t.text(r)
	}
	return out
}

// structRef reads a reference to a layout. A layout refers to earlier records
// only, so that no chain of them is endless.
func (t *tables) structRef(r *reader, below uint32) *Struct {
	n := r.num()
	if n == 0 {
		return nil
	}
	if n > uint64(below) {
		r.bad = true
		return nil
	}
	return t.structOf(uint32(n - 1))
}

func (t *tables) anyStruct(r *reader) *Struct { return t.structRef(r, t.structs.recs.n) }

func decodeStruct(t *tables, r *reader) *Struct {
	s := &Struct{Name: t.text(r), Size: r.size(), Align: r.size(), Union: r.num() != 0}
	s.Fields = make([]Field, r.count())
	for i := range s.Fields {
		t.field(r, &s.Fields[i])
	}
	if r.bad {
		return nil
	}
	return s
}

func (t *tables) field(r *reader, f *Field) {
	bits := r.num()
	f.Kind = fieldKind(bits & wire.FieldKind)
	f.Name, f.Offset, f.Size, f.Type = t.text(r), r.size(), r.size(), t.text(r)
	if f.Kind == KindStruct {
		f.Struct = t.structRef(r, r.self)
		r.bad = r.bad || f.Struct == nil
	}
	f.Elem = f.Size
	if bits&wire.FieldDims != 0 {
		f.Dims = make([]int, r.count())
		for i := range f.Dims {
			f.Dims[i] = r.size()
			if f.Dims[i] > 0 {
				f.Elem /= f.Dims[i]
			}
		}
	}
	if bits&wire.FieldElem != 0 {
		f.Elem = r.size()
	}
	if bits&wire.FieldBits != 0 {
		f.BitOff, f.Bits = r.int(1<<16), r.int(64)
	}
	if bits&wire.FieldRole != 0 {
		f.Role = role(t.text(r))
	}
	if bits&wire.FieldCount != 0 {
		f.Count = t.text(r)
	}
	if bits&wire.FieldDomain != 0 {
		if n := r.num(); n > 0 && n <= uint64(t.domains.recs.n) {
			f.Domain = t.domain(uint32(n - 1))
		}
	}
	if bits&wire.FieldDir != 0 {
		f.Dir = direction(t.text(r))
	}
}

func fieldKind(k uint64) Kind {
	switch k {
	case wire.Int:
		return KindInt
	case wire.Float:
		return KindFloat
	case wire.Pointer:
		return KindPointer
	case wire.Enum:
		return KindEnum
	case wire.Record:
		return KindStruct
	}
	return KindUint
}

func role(s string) Role {
	switch s {
	case "handle":
		return RoleHandle
	case "fd":
		return RoleFD
	case "pid":
		return RolePID
	case "class":
		return RoleClass
	case "pointer":
		return RolePointer
	case "status":
		return RoleStatus
	case "uuid":
		return RoleUUID
	case "address":
		return RoleAddress
	case "bytes":
		return RoleBytes
	case "gpu":
		return RoleGPU
	case "string":
		return RoleString
	}
	return RoleNone
}

func direction(s string) Dir {
	switch s {
	case "in":
		return DirIn
	case "out":
		return DirOut
	case "inout":
		return DirInOut
	}
	return DirUnknown
}

func (t *tables) values(r *reader) []Value {
	n := r.count()
	if n == 0 {
		return nil
	}
	out := make([]Value, n)
	v := uint64(0)
	for i := range out {
		out[i].Name = t.text(r)
		v += r.num()
		out[i].V = v
	}
	return out
}

func decodeDomain(t *tables, r *reader) *Domain {
	d := &Domain{Prefix: t.text(r), Bound: r.num() != 0, Values: t.values(r)}
	if n := r.count(); n > 0 {
		d.Ranges = make([]BitRange, n)
		for i := range d.Ranges {
			d.Ranges[i] = BitRange{Name: t.text(r), Hi: uint8(r.int(255)), Lo: uint8(r.int(255)), Values: t.values(r)}
		}
	}
	if n := r.count(); n > 0 {
		d.Beside = make([]Beside, n)
		for i := range d.Beside {
			d.Beside[i] = Beside{Of: t.text(r), Values: t.values(r)}
		}
	}
	if r.bad {
		return nil
	}
	return d
}

func decodeControl(t *tables, r *reader) *Control {
	bits := r.num()
	c := &Control{Cmd: uint32(r.num()), Name: t.text(r), Interface: t.text(r), Exported: bits&wire.ControlExported != 0}
	if bits&wire.ControlParams != 0 {
		c.Params = t.anyStruct(r)
		r.bad = r.bad || c.Params == nil
	}
	if c.Params != nil {
		c.Size = c.Params.Size
	}
	if c.Exported {
		c.Func, c.Owner = t.text(r), t.text(r)
		c.Access, c.Flags = uint32(r.num()), uint32(r.num())
		c.FlagNames = t.texts(r)
	}
	if bits&wire.ControlEmbedded != 0 {
		c.Embedded = t.pointers(r)
	}
	if bits&wire.ControlOther != 0 {
		if n := r.num(); n < uint64(r.self) { // an earlier record: no endless chain
			c.Other = t.control(uint32(n))
		} else {
			r.bad = true
		}
	}
	if r.bad {
		return nil
	}
	return c
}

func (t *tables) pointers(r *reader) []Embedded {
	n := r.count()
	if n == 0 {
		return nil
	}
	out := make([]Embedded, n)
	for i := range out {
		t.pointer(r, &out[i])
	}
	return out
}

func (t *tables) pointer(r *reader, e *Embedded) {
	e.In = t.anyStruct(r)
	e.Field, e.Offset = t.text(r), r.size()
	r.bad = r.bad || e.In == nil || r.size() != 8
	e.Of = target(r.num())
	e.Dir = direction(t.text(r))
	e.Struct = t.anyStruct(r)
	e.Elem = r.size()
	bits := r.num()
	e.Text, e.Square = bits&1 != 0, bits&2 != 0
	if bits&4 != 0 {
		e.Count, e.CountOff, e.CountSize = t.text(r), r.size(), r.int(8)
		e.Plus = r.size()
	} else {
		e.Const = r.size()
	}
	if bits&8 != 0 {
		e.When, e.WhenOff = t.text(r), r.size()
		r.bad = r.bad || r.size() != 4
		e.WhenVal = uint32(r.num())
	}
}

func target(n uint64) Target {
	switch n {
	case wire.TargetControl:
		return TargetControl
	case wire.TargetAlloc:
		return TargetAlloc
	case wire.TargetEscape:
		return TargetEscape
	}
	return TargetArray
}

func decodeClass(t *tables, r *reader) *Class {
	bits := r.num()
	c := &Class{Name: t.text(r), ID: uint32(r.num()), Internal: t.text(r), Alloc: t.anyStruct(r)}
	c.Multi, c.Listed = bits&wire.ClassMulti != 0, bits&wire.ClassListed != 0
	switch t.text(r) {
	case "none":
		c.Need = NeedNone
	case "optional":
		c.Need = NeedOptional
	case "required":
		c.Need = NeedRequired
	}
	c.Parents, c.Aliases = t.texts(r), t.texts(r)
	if r.bad {
		return nil
	}
	c.classify()
	return c
}

func decodeEscape(t *tables, r *reader) *Escape {
	e := &Escape{Name: t.text(r), Nr: uint32(r.num()), Array: r.num() != 0}
	switch t.text(r) {
	case "ctl":
		e.Scope = ScopeCtl
	case "gpu":
		e.Scope = ScopeGPU
	}
	e.Source = t.text(r)
	for range r.count() {
		s := t.anyStruct(r)
		r.bad = r.bad || s == nil
		e.Params = append(e.Params, s)
	}
	e.Embedded = t.pointers(r)
	if r.bad {
		return nil
	}
	return e
}

func decodeRequest(t *tables, r *reader) *Request {
	bits := r.num()
	q := &Request{Name: t.text(r), Nr: uint32(r.num()), Params: t.anyStruct(r), Live: bits&wire.RequestLive != 0, Test: bits&wire.RequestTest != 0}
	if q.Params != nil {
		q.Size = q.Params.Size
	}
	if r.bad {
		return nil
	}
	return q
}
