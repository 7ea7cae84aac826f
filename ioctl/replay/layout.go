package replay

import "nvtrace/rm"

// role says how the bytes of a member are compared and answered.
type role uint8

const (
	rolePlain   role = iota // a value
	rolePad                 // between members
	roleOut                 // the driver writes it, whatever was there
	roleStatus              // roleOut; the resource manager's status
	rolePointer             // an address in the program's memory
	roleHandle
	roleFD
	rolePID
	roleHost // what the program found out about the machine
)

// hostFacts are the members that tell the driver something about the machine.
// They differ between the recorded one and this one, and say nothing of the call.
var hostFacts = map[string]string{
	"nv_ioctl_sys_params_t": "memblock_size", // from /sys/devices/system/memory/block_size_bytes
}

// maxLayout bounds the structs that are taken apart; the largest of the driver's
// has 171,936 bytes.
const maxLayout = 1 << 20

// layouts caches the roles of a struct's bytes.
type layouts map[*rm.Struct][]role

// of returns the roles of s's bytes, nil for an unknown layout.
func (l layouts) of(s *rm.Struct) []role {
	if s == nil || s.Size <= 0 || s.Size > maxLayout {
		return nil
	}
	roles, ok := l[s]
	if !ok {
		roles = make([]role, s.Size)
		for i := range roles {
			roles[i] = rolePad
		}
		mark(roles, s, rolePad)
		l[s] = roles
	}
	return roles
}

// mark enters the members of s, which lies at the beginning of roles. What a
// union's members disagree about is plain.
func mark(roles []role, s *rm.Struct, inherited role) {
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Offset < 0 || f.Size <= 0 || f.Offset+f.Size > len(roles) {
			continue // a flexible array, or a layout that is larger than its record
		}
		part := roles[f.Offset : f.Offset+f.Size]
		r := roleOf(f, inherited)
		if f.Name != "" && hostFacts[s.Name] == f.Name {
			r = roleHost
		}
		if f.Kind == rm.KindStruct && f.Struct != nil && f.Elem > 0 && r != roleOut {
			for at := 0; at+f.Elem <= len(part); at += f.Elem {
				sub := part[at : at+f.Elem]
				if !s.Union {
					mark(sub, f.Struct, r)
					continue
				}
				merged := make([]role, len(sub))
				for i := range merged {
					merged[i] = rolePad
				}
				mark(merged, f.Struct, r)
				for i, m := range merged {
					merge(&sub[i], m)
				}
			}
			continue
		}
		for i := range part {
			if s.Union || f.Bits > 0 {
				merge(&part[i], r)
			} else {
				part[i] = r
			}
		}
	}
}

// merge enters r where another member may already be.
func merge(at *role, r role) {
	switch {
	case r == rolePad || *at == r:
	case *at == rolePad:
		*at = r
	default:
		*at = rolePlain
	}
}

func roleOf(f *rm.Field, inherited role) role {
	if f.Role == rm.RoleStatus {
		return roleStatus
	}
	if inherited == roleOut || f.Dir == rm.DirOut {
		return roleOut
	}
	switch f.Role {
	case rm.RoleHandle:
		return roleHandle
	case rm.RoleFD:
		return roleFD
	case rm.RolePID:
		return rolePID
	case rm.RolePointer:
		return rolePointer
	}
	if f.Kind == rm.KindPointer {
		return rolePointer
	}
	return rolePlain
}

// statusOffset returns where the status is, -1 if there is none.
func (l layouts) statusOffset(s *rm.Struct) int {
	for i, r := range l.of(s) {
		if r == roleStatus {
			return i
		}
	}
	return -1
}
