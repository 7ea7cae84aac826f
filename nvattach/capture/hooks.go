package capture

import (
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
)

// breakAt sets a breakpoint.
func (c *Capture) breakAt(t *ptrace.Task, addr uint64, h *hook) {
	if _, err := t.SetBreakpoint(addr, c.hit); err != nil {
		c.gap(t, "%s of %s can't be watched in process %d: %v", h.name(), h.lib, t.PID, err)
		return
	}
	c.process(t).hooks[addr] = h
}

// hit is called at a watched function's entry.
func (c *Capture) hit(t *ptrace.Task, b *ptrace.Breakpoint) {
	p := c.process(t)
	h := p.hooks[b.Addr]
	if h == nil || p.querier == t {
		return // of a process whose state is gone, or called for us
	}
	t.Why(h.name())
	regs, err := t.Regs()
	if err != nil {
		return // it died
	}
	if ret, err := readWord(t, regs.SP()); err == nil && agent.CalledByUs(ret) {
		return // called for nvtrace, which knows what it loads
	}
	c.author.stats.Hits++
	if c.debug {
		began := time.Now()
		defer func() { c.log.Debug("hit", "tid", t.TID, "function", h.name(), "took", time.Since(began)) }()
	}
	th := c.thread(t)
	k := &call{h: h, addr: b.Addr, entry: *regs, start: c.now()}
	if th.retry != nil && th.retry.addr == k.addr && th.retry.entry.SP() == regs.SP() {
		k.start = th.retry.start
	} else {
		th.retry = nil
	}
	th.dropAbandoned(regs.SP())
	if th.retry == nil {
		c.count(t, k)
	}
	k.nested = slices.ContainsFunc(th.calls, func(o *call) bool { return o.h.fn.act < actTable })
	switch h.fn.act {
	case actLoad, actLinkAdd:
		c.load(t, th, k)
	case actLoadFile, actLinkAddFile:
		c.loadFile(t, th, k)
	case actLinkEnd:
		k.caller = c.callerAlone(t, k)
		c.onReturn(t, th, k, c.linked)
	case actTable:
		if _, err := t.ReadMem(k.arg(t, h.fn.image), k.id[:]); err == nil {
			c.onReturn(t, th, k, c.tableGiven)
		}
	case actUnload, actLinkDestroy:
		c.ask(t, p)
		c.onReturn(t, th, k, c.unloaded)
	case actLookup, actEnumerate:
		c.ask(t, p)
		c.onReturn(t, th, k, c.lookedUp)
	case actLaunch:
		if h.early {
			c.earlyLaunch(t, b, k)
		} else {
			c.launchAt(t, k)
		}
	case actSlot:
		c.slotCalled(t, b, th, k)
	}
}

// hook watches one function.
func (c *Capture) hook(t *ptrace.Task, addr uint64, fn function, h hook) {
	p := c.process(t)
	if old := p.hooks[addr]; old != nil {
		if !slices.Contains(old.names, h.names[0]) {
			old.names = append(old.names, h.names[0])
		}
		if old.fn.loads() || !fn.loads() {
			return
		}
		old.fn = fn // of two names, one that loads decides
		return
	}
	h.fn = fn
	switch fn.act {
	case actLaunch:
		if c.o.Audit == AuditHooks && c.o.Agent != nil {
			c.hookLaunch(t, addr, &h)
			return
		}
		if c.o.Audit != AuditBreakpoints {
			return
		}
	case actLookup, actEnumerate:
		if c.o.Audit == AuditOff && c.o.Replace == nil {
			return
		}
		if fn.name == kernelGetFunction && (c.o.Audit == AuditOff || c.hookLookup(t, addr, &h)) {
			return // it matters to the audit only
		}
		if fn.act == actLookup && fn.name != kernelGetFunction && c.hookNew(t, addr, &h) {
			return
		}
	}
	c.breakAt(t, addr, &h)
}

// hookLaunch has launches reported by code in the program. A handle as the first
// argument stops the program at its first launch only; other launches stop it as
// long as they bring new kernels, and are read from the agent's records, in their
// order. Graphs are built at breakpoints: that
// is rare, and the kernel must be read from memory.
func (c *Capture) hookLaunch(t *ptrace.Task, addr uint64, h *hook) {
	fn := h.fn
	if fn.how != launchHandle {
		c.breakAt(t, addr, h)
		return
	}
	if h.early = fn.out != 0; c.o.LaunchesShared && h.slot.table == "" {
		h.early = true
		c.breakAt(t, addr, h)
		return
	}
	k := &agent.Hook{Name: h.name(), Library: h.lib, Quiet: true, NoReturn: true}
	k.OnRecord = func(_ *agent.Process, r *agent.Record) { c.launchedLate(r, r.Args[fn.out], h.name()) }
	if fn.out == 0 {
		// The stop is the exact moment; what it told is not told again by the record.
		k.Once, k.Stop = true, true
		k.OnStop = func(t *ptrace.Task, p *agent.Process, r *agent.Record) {
			// Launches that are made for probes are tries of one that the program is about
			// to make, or of kernels that it knows nothing of.
			if agent.CalledByUs(r.Caller) && c.process(t).kernels[r.Args[0]] == nil {
				p.Forget(k)
				return
			}
			c.launchedNow(t, r.Args[0], h.name())
		}
	}
	p, err := c.o.Agent.Process(t)
	if err == nil {
		err = p.Hook(t, addr, k)
	}
	if err == nil && k.Once {
		s := c.process(t)
		s.counters = append(s.counters, counter{p, k})
		s.renewed = append(s.renewed, func() {
			c.tally(s)
			p.Forget(k)
		})
	}
	if err != nil {
		c.tellCounted("", 0)
		c.log.Debug("launches stop the program", "function", h.name(), "pid", t.PID, "err", err)
		h.early = false
		if c.o.LaunchesCheap && frequent(fn.name) {
			c.tellLaunched("")
			return
		}
	}
	if err != nil || h.early {
		c.breakAt(t, addr, h)
	}
}

// tableGiven is called when cuGetExportTable returns. A slot can't be had but
// from here, so that its breakpoint is there before anyone can call it.
func (c *Capture) tableGiven(t *ptrace.Task, k *call, result int32) {
	if result != 0 {
		return
	}
	known, ok := c.tables[k.id]
	if ok && len(known.slots) == 0 {
		return
	}
	name := known.name
	if !ok {
		name = k.id.String()
		c.note(t, "process %d asked the driver for the hidden table %s, which is not known: its slots are watched", t.PID, name)
	}
	at, err := readWord(t, k.arg(t, k.h.fn.out))
	var list []uint64
	if err == nil {
		list, err = c.readSlots(t, at)
	}
	if err != nil {
		c.gap(t, "the hidden table %s of process %d can't be read: %v", name, t.PID, err)
		return
	}
	if !ok {
		c.watchSlots(t, c.process(t), list, name, k.h.lib)
		return
	}
	for _, i := range slices.Sorted(maps.Keys(known.slots)) {
		if i >= len(list) || list[i] == 0 {
			continue // an older driver
		}
		addr, id := list[i], slotID{known.name, i}
		c.learn(t, addr, id, k.h.lib)
		c.hook(t, addr, known.slots[i], hook{names: []string{id.String()}, lib: k.h.lib, slot: id})
	}
}

// watchSlots sets breakpoints on all functions of a table.
func (c *Capture) watchSlots(t *ptrace.Task, p *process, list []uint64, name, lib string) {
	for i, addr := range list {
		if p.hooks[addr] != nil || !p.inDriver(addr) {
			continue
		}
		id := slotID{name, i}
		c.breakAt(t, addr, &hook{fn: function{name: id.String(), act: actSlot, out: none}, names: []string{id.String()}, lib: lib, slot: id})
	}
}

// hookCached sets the breakpoints of the hidden loaders that an earlier run found
// in the same build of the driver.
func (c *Capture) hookCached(t *ptrace.Task, p *process, s *span) {
	if s.obj.buildID == "" {
		return
	}
	for _, known := range c.tables {
		for i, fn := range known.slots {
			id := slotID{known.name, i}
			at, ok := c.slots.get(s.obj.buildID, id)
			if !ok || at.Offset < s.off || at.Offset-s.off >= s.end-s.start {
				continue
			}
			addr := s.start + (at.Offset - s.off)
			var code [slotCode]byte
			// The code must be the same: a breakpoint within an instruction would break it.
			if n, _ := t.ReadText(addr, code[:]); n < len(code) || hex.EncodeToString(code[:]) != at.Code {
				continue
			}
			c.hook(t, addr, fn, hook{names: []string{id.String()}, lib: s.obj.path, slot: id})
		}
	}
}

// learn remembers where in the driver's file a slot points to.
func (c *Capture) learn(t *ptrace.Task, addr uint64, id slotID, lib string) {
	p := c.process(t)
	for i := range p.spaces {
		s := &p.spaces[i]
		if addr < s.start || addr >= s.end || s.obj.buildID == "" {
			continue
		}
		var code [slotCode]byte
		if n, _ := t.ReadText(addr, code[:]); n < len(code) {
			return
		}
		now := slotPlace{Offset: addr - s.start + s.off, Code: hex.EncodeToString(code[:])}
		old, had := c.slots.get(s.obj.buildID, id)
		if had && old.Offset == now.Offset {
			return // its code was compared when the file was mapped; since then it may have been hooked
		}
		if had && old != now {
			c.note(t, "slot %s of %s is at +%#x of the file, not at +%#x as an earlier run found", id, lib, now.Offset, old.Offset)
		}
		if !had || old != now {
			if err := c.slots.put(s.obj.buildID, id, now); err != nil {
				c.log.Debug("cache of hidden loaders", "err", err)
			}
		}
		return
	}
}
