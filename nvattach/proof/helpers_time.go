package proof

import (
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// time is bpf_ktime_get_ns: %globaltimer, where nobody compares it with a time on the host.
func (u *Unit) time(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	now := k.Reg(ptx.B64)
	k.F("mov.u64 %s, %%globaltimer;", now)
	if !u.HostClock {
		return Register64(now), nil
	}
	at, offset, since, drift := k.Reg(ptx.B64), k.Reg(ptx.B64), k.Reg(ptx.B64), k.Reg(ptx.B64)
	k.F("mov.u64 %s, %#x;", at, u.Maps.Base)
	for i, r := range []string{offset, since, drift} {
		k.F("ld.global.u64 %s, [%s+%d];", r, at, mapmem.ClockOff+8*i)
	}
	k.F("sub.s64 %s, %s, %s;", since, now, since)
	k.F("mul.hi.s64 %s, %s, %s;", drift, since, drift)
	k.F("add.s64 %s, %s, %s;", now, now, offset)
	k.F("add.s64 %s, %s, %s;", now, now, drift)
	return Register64(now), nil
}
