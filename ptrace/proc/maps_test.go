package proc

import (
	"errors"
	"os"
	"slices"
	"testing"
)

func TestParseMaps(t *testing.T) {
	const text = `55d0c0a00000-55d0c0a21000 r-xp 00002000 fd:01 1234567                    /usr/bin/with space
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
garbage
x-y rw-s 0 00:06 1 /dev/nvidia0
1000-2000 rw-s zz 00:06 1 /dev/nvidia0
2000-1000 rw-s 0 00:06 1 /dev/nvidia0
7f0000002000-7f0000003000 r--s 00001000 08:02 42                         /lib/x.so (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`
	list := ParseMaps([]byte(text))
	if len(list) != 4 {
		t.Fatalf("%d mappings: %+v", len(list), list)
	}
	if m := list[0]; !m.Exec || !m.Immutable() || m.Offset != 0x2000 || m.Inode != 1234567 || m.Path != "/usr/bin/with space" {
		t.Errorf("%+v", m)
	}
	if m := list[1]; m.Inode != 0 || !m.Write || m.Immutable() || m.Path != "" {
		t.Errorf("%+v", m)
	}
	if m := list[2]; m.Private || m.Immutable() || m.Path != "/lib/x.so (deleted)" {
		t.Errorf("%+v", m)
	}
	if m := At(list, 0x55d0c0a20fff); m != &list[0] || !m.Contains(0x55d0c0a20fff, 1) || m.Contains(0x55d0c0a20fff, 2) || m.Contains(0x55d0c0a20000, 1<<63) {
		t.Errorf("%+v", m)
	}
	for _, tt := range []struct {
		off, size, want uint64
		ok              bool
	}{{0x2000, 1, 0x55d0c0a00000, true}, {0x22fff, 1, 0x55d0c0a20fff, true}, {0x22fff, 2, 0, false}, {0x23000, 0, 0, false}, {0x1fff, 1, 0, false}, {^uint64(0), 1, 0, false}} {
		if at, ok := list[0].Addr(tt.off, tt.size); ok != tt.ok || ok && at != tt.want {
			t.Errorf("offset %#x, %d bytes: %#x, %t", tt.off, tt.size, at, ok)
		}
	}
	if m := At(list, 0x55d0c0a21000); m != nil {
		t.Errorf("%+v", m)
	}
}

// TestView holds the kernel's answers for single addresses against the list.
func TestView(t *testing.T) {
	list, err := Maps(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	v := NewView(os.Getpid())
	defer v.Close()
	all := &View{pid: os.Getpid()}
	compared := 0
	for _, want := range list {
		if want.Inode == 0 {
			continue // the heap may grow meanwhile
		}
		compared++
		for _, view := range []*View{v, all} {
			got := view.At(want.End - 1)
			if got == nil || *got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
	}
	if compared == 0 {
		t.Fatal("no mapping has a file")
	}
	if m := v.At(1); m != nil {
		t.Errorf("something is mapped at 1: %+v", m)
	}
	if v.listed {
		t.Log("this kernel can't be asked for single addresses")
	}
}

// TestOpenMapped: the file behind a mapping is the mapping's, or none.
func TestOpenMapped(t *testing.T) {
	pid := os.Getpid()
	maps, err := Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(maps, func(m Mapping) bool { return m.Exec && m.Path == Exe(pid) })
	if i < 0 {
		t.Fatalf("no code of %s in %v", Exe(pid), maps)
	}
	m := maps[i]
	f, key, err := OpenMapped(pid, &m)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if key.Inode != m.Inode {
		t.Errorf("inode %d, want %d", key.Inode, m.Inode)
	}
	m.Start, m.Inode = 0, m.Inode+1 // whose name another file has now
	if f, _, err := OpenMapped(pid, &m); err == nil {
		f.Close()
		t.Error("another file was opened")
	}
	if _, _, err := OpenRegular(os.DevNull); !errors.Is(err, ErrNotRegular) {
		t.Errorf("%s: %v", os.DevNull, err)
	}
}
