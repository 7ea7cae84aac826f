package live

import (
	"cmp"
	"fmt"
	"slices"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/ioctl/channels"
	"nvtrace/rm"
)

// channelPlaces returns where the channels of a process are, by what it has asked the driver for: the ring at its address in
// the GPU's address space, the USERD in the memory of its handle, both where the program has mapped that.
func channelPlaces(l *objects.ObjectLog, pid int32) (list []channels.Place) {
	f := l.Facts(objects.Moment{Word: "end"}, false)
	memory := make(map[rm.Ref]*rm.Object)
	var chans []*rm.Object
	for o := range l.Tree.Objects() {
		switch {
		case o.PID != pid || o.Died != rm.Alive:
		case o.Kind == rm.Channel:
			chans = append(chans, o)
		case o.Kind == rm.Memory:
			memory[o.Ref] = o
		}
	}
	slices.SortFunc(chans, func(a, b *rm.Object) int { return cmp.Compare(a.ID, b.ID) })
	for _, ch := range chans {
		d := l.Details[ch.ID]
		userData, ok := mappedAt(memory[rm.Ref{Client: ch.Ref.Client, Handle: d.UserData}], d.UserDataAt, pid)
		if !ok || d.Entries == 0 {
			continue
		}
		for o, spans := range f.Gpu {
			for _, s := range spans {
				if o.PID != pid || d.Gpfifo < s.Base || d.Gpfifo-s.Base >= s.Length {
					continue
				}
				if ring, ok := mappedAt(o, d.Gpfifo-s.Base, pid); ok {
					list = append(list, channels.Place{Ring: ring, UserData: userData, Entries: int(d.Entries)})
				}
			}
		}
	}
	return list
}

// mappedAt returns the address that a process has mapped a place in memory to.
func mappedAt(o *rm.Object, offset uint64, pid int32) (addr uint64, ok bool) {
	if o == nil {
		return 0, false
	}
	for _, m := range o.Mappings() {
		if m.PID == pid && m.Addr != 0 && offset >= m.Offset && offset-m.Offset < m.Size {
			return m.Addr + offset - m.Offset, true
		}
	}
	return 0, false
}

// placesOf reads the recording of a run that goes on: where the channels of a process of it are.
func placesOf(e *cli.Env, name string, pid int) ([]channels.Place, error) {
	l, err := objects.ReadObjects(e, new(cli.ReadFlags), name)
	if l == nil {
		return nil, err
	}
	list := channelPlaces(l, int32(pid)) // what is damaged, or not written yet, was said
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: process %d has made no channel there", name, pid)
	}
	return list, nil
}
