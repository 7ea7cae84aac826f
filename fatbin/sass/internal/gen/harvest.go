package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
)

// code calls fn with each section of machine code of each cubin in the files.
// It is called from two goroutines.
func code(files []string, fn func(arch sass.Arch, section string, text []byte)) error {
	for _, name := range files {
		f, err := fatbin.Open(name, nil)
		if err != nil {
			return err
		}
		work := make(chan []byte, 4)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for data := range work {
					cubinCode(data, fn)
				}
			})
		}
		n, size := 0, 0
		x := fatbin.NewInflater(nil)
		for c, err := range f.Containers() {
			if err != nil {
				fmt.Fprintln(os.Stderr, name, err)
				continue
			}
			for i := range c.Entries {
				e := &c.Entries[i]
				if e.Kind() != fatbin.KindELF {
					continue
				}
				data, err := x.Append(nil, e)
				if err != nil {
					fmt.Fprintln(os.Stderr, name, err)
					continue
				}
				n++
				size += len(data)
				work <- data
			}
		}
		x.Close()
		close(work)
		wg.Wait()
		f.Close()
		fmt.Fprintf(os.Stderr, "%s: %d cubins, %d MB\n", name, n, size>>20)
	}
	return nil
}

func cubinCode(data []byte, fn func(arch sass.Arch, section string, text []byte)) {
	c, err := fatbin.ParseCubin(data)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cubin:", err)
		return
	}
	for _, s := range c.Sections {
		if s.Type != 1 || !strings.HasPrefix(s.Name, ".text.") || s.Offset+s.Size > uint64(len(data)) {
			continue
		}
		fn(sass.Arch(c.Arch.SM), s.Name, data[s.Offset:][:s.Size])
	}
}

type seedKey struct {
	arch sass.Arch
	op   uint16
	hi   uint64 // bits 72 to 104
}

// seeds finds one word of each combination of opcode and bits 72 to 104.
func seeds(files []string) (map[seedKey]sass.Word, map[sass.Arch]int, error) {
	out := make(map[seedKey]sass.Word)
	sizes := make(map[sass.Arch]int)
	var mu sync.Mutex
	err := code(files, func(arch sass.Arch, _ string, text []byte) {
		mine := make(map[seedKey]sass.Word)
		for i := 0; i+16 <= len(text); i += 16 {
			w := sass.WordAt(text[i:])
			k := seedKey{arch, w.Opcode(), w.Bits(72, 33)}
			if _, ok := mine[k]; !ok {
				mine[k] = w
			}
		}
		mu.Lock()
		defer mu.Unlock()
		sizes[arch] += len(text)
		for k, w := range mine {
			if _, ok := out[k]; !ok {
				out[k] = w
			}
		}
	})
	return out, sizes, err
}

func harvest(files []string, out string) error {
	m, sizes, err := seeds(files)
	if err != nil {
		return err
	}
	var lines []string
	for k, w := range m {
		lines = append(lines, fmt.Sprintf("%d %016x %016x", k.arch, w.Lo, plain(w).Hi))
	}
	slices.Sort(lines)
	fmt.Fprintln(os.Stderr, sizes, len(lines))
	return os.WriteFile(out, []byte(strings.Join(lines, "\n")+"\n"), 0o666)
}

// plain is the word without scheduling.
func plain(w sass.Word) sass.Word {
	return w.WithControl(sass.Control{Stall: 1, Yield: true, WriteBar: sass.NoBar, ReadBar: sass.NoBar})
}
