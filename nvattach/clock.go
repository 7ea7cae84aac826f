package nvattach

import (
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Clocks reports whether programs in kernels and on the host both ask for the time.
func (p *Plan) Clocks() bool {
	for _, q := range p.Programs {
		for _, n := range q.Report.Helpers {
			if q.unit.clock && n == helper.Time {
				return true
			}
		}
	}
	return false
}

// time is bpf_ktime_get_ns: %globaltimer, where nobody compares it with a time on the host.
func (u *unit) time(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	now := k.Reg(ptx.B64)
	k.F("mov.u64 %s, %%globaltimer;", now)
	if !u.clock {
		return register64(now), nil
	}
	at, offset, since, drift := k.Reg(ptx.B64), k.Reg(ptx.B64), k.Reg(ptx.B64), k.Reg(ptx.B64)
	k.F("mov.u64 %s, %#x;", at, u.maps.Base)
	for i, r := range []string{offset, since, drift} {
		k.F("ld.global.u64 %s, [%s+%d];", r, at, mapmem.ClockOff+8*i)
	}
	k.F("sub.s64 %s, %s, %s;", since, now, since)
	k.F("mul.hi.s64 %s, %s, %s;", drift, since, drift)
	k.F("add.s64 %s, %s, %s;", now, now, offset)
	k.F("add.s64 %s, %s, %s;", now, now, drift)
	return register64(now), nil
}
