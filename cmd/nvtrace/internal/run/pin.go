package run

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/nvattach"
	"nvtrace/nvattach/hostmaps"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/owned"
	"nvtrace/ptrace/agent"
)

// Maps that outlive a run are a folder each: data, which runs map; maps.json, which says what
// lies where in it; and the objects whose maps they are.
const (
	pinData = "data"
	pinMaps = "maps.json"

	maxPinFile = 64 << 20 // of a description, of an object
)

// pinsVar names the folder of pinned maps, if it is set.
const pinsVar = "NVTRACE_PINS"

// pinsDir is the folder of pinned maps.
func pinsDir(getenv func(string) string) string {
	return cmp.Or(getenv(pinsVar), filepath.Join("/dev/shm", "nvtrace-"+strconv.Itoa(os.Getuid())))
}

// A pinFolder is a folder of maps.
type pinFolder struct {
	name, dir string
	root      *os.Root // of a run
}

var pinNames = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)

func newPinFolder(getenv func(string) string, name string) (*pinFolder, error) {
	if !pinNames.MatchString(name) {
		return nil, fmt.Errorf("%q: a name of letters, digits, points and dashes is wanted", name)
	}
	return &pinFolder{name: name, dir: filepath.Join(pinsDir(getenv), name)}, nil
}

// open opens the memory of the maps for a run; nil for no folder.
func (p *pinFolder) open() (*os.File, error) {
	if p == nil {
		return nil, nil
	}
	pins := filepath.Dir(p.dir)
	root, err := owned.Make(filepath.Dir(pins), filepath.Base(pins), p.name)
	if err != nil {
		return nil, fmt.Errorf("--map-pin: %w", err)
	}
	f, err := owned.File(root, pinData, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("--map-pin: %w", errors.Join(err, root.Close()))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("--map-pin: another nvtrace runs with %s", p.name), f.Close(), root.Close())
	}
	p.root = root
	return f, nil
}

// explain says what to do about maps that are others.
func (p *pinFolder) explain(err error) error {
	if p != nil && (errors.Is(err, mapmem.ErrPinned) || errors.Is(err, agent.ErrSize)) {
		return fmt.Errorf("--map-pin %s: %w; nvtrace maps pin rm %s removes them", p.name, err, p.name)
	}
	return err
}

// describe writes down what lies where, for the objects of a plan, which were made with flags of clang.
func (p *pinFolder) describe(e *cli.Env, objects, clangFlags []string, plan *nvattach.Plan, r *hostrun.Runner) error {
	if r == nil || p.root == nil {
		return errors.New("--map-pin is about maps of programs on the host, and there are none")
	}
	defer p.root.Close()
	for i, name := range objects {
		b, err := os.ReadFile(name)
		if strings.HasSuffix(name, ".c") {
			b, err = probe.CompileProbes(e, name, probe.Words(clangFlags))
		}
		if err == nil {
			err = owned.WriteFile(p.root, strconv.Itoa(i)+".o", b)
		}
		if err != nil {
			return fmt.Errorf("--map-pin: %w", err)
		}
	}
	b, err := json.Marshal(r.Maps().Pin(plan.Objects))
	if err == nil {
		err = owned.WriteFile(p.root, pinMaps, b)
	}
	return err
}

// folder opens the folder for reading.
func (p *pinFolder) folder() (*os.Root, error) {
	pins, err := owned.Open(filepath.Dir(p.dir))
	if err != nil {
		return nil, err
	}
	defer pins.Close()
	return owned.OpenBelow(pins, p.name)
}

// read opens the maps that lie in the folder. done unmaps them.
func (p *pinFolder) read() (m *mapmem.Maps, mem *mapmem.HostMemory, done func(), err error) {
	root, err := p.folder()
	if err != nil {
		return nil, nil, nil, err
	}
	defer root.Close()
	b, err := owned.ReadFile(root, pinMaps, maxPinFile)
	if err != nil {
		return nil, nil, nil, err
	}
	var pin mapmem.Pin
	if err := json.Unmarshal(b, &pin); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", filepath.Join(p.dir, pinMaps), err)
	}
	last := 0
	for _, q := range pin.Maps {
		last = max(last, q.Object)
	}
	var objs []*object.Object
	for i := 0; i <= last && i < 1000; i++ {
		name := strconv.Itoa(i) + ".o"
		b, err := owned.ReadFile(root, name, maxPinFile)
		if err != nil {
			return nil, nil, nil, err
		}
		o, err := object.Load(filepath.Join(p.dir, name), b)
		if err != nil {
			return nil, nil, nil, err
		}
		objs = append(objs, o)
	}
	f, err := owned.File(root, pinData, os.O_RDWR)
	if err != nil {
		return nil, nil, nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() < int64(os.Getpagesize()) {
		return nil, nil, nil, errors.Join(err, fmt.Errorf("%s is damaged", p.name))
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, nil, os.NewSyscallError("mmap", err)
	}
	m, mem, err = pin.Open(objs, data)
	if err != nil {
		_ = unix.Munmap(data)
		return nil, nil, nil, err
	}
	return m, mem, func() { _ = unix.Munmap(data) }, nil
}

// PinVerb is "maps pin".
func PinVerb(e *cli.Env, args []string) int {
	if len(args) > 0 && args[0] == "ls" {
		var asJSON cli.OptString
		flags := cli.NewFlagSet(e, "maps pin ls", "[--json]")
		asJSON.RegisterJSON(flags)
		words, status, ok := cli.ParseAnywhere(flags, args[1:])
		switch {
		case !ok:
			return status
		case len(words) > 0:
			return e.Fail(cli.ExitUsage, "maps pin ls lists all: leave %q out, or nvtrace maps pin dump %s", words[0], words[0])
		}
		return listPins(e, &asJSON)
	}
	if len(args) < 2 || args[0] != "set" && len(args) != 2 || args[0] == "set" && len(args) < 3 {
		return e.Fail(cli.ExitUsage, "maps pin wants ls, dump NAME, set NAME MAP[KEY]=VALUE..., or rm NAME")
	}
	p, err := newPinFolder(e.Getenv, args[1])
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	switch args[0] {
	case "dump":
		err = p.dump(e)
	case "set":
		err = p.set(args[2:])
	case "rm":
		err = p.remove()
	default:
		return e.Fail(cli.ExitUsage, "maps pin %s: there are ls, dump, set and rm", args[0])
	}
	if errors.Is(err, os.ErrNotExist) {
		err = errors.New("no pinned maps of that name; see nvtrace maps pin ls")
	}
	switch {
	case errors.Is(err, object.ErrSetting):
		return e.Fail(cli.ExitUsage, "%v", err)
	case err != nil:
		return e.Fail(cli.ExitFailed, "%s: %v", p.name, err)
	}
	return cli.ExitOK
}

// pinned are the maps of a name.
type pinned struct {
	Name  string   `json:"name"`
	Maps  []string `json:"maps"`
	Error string   `json:"error,omitempty"` // they can't be read
}

func listPins(e *cli.Env, asJSON *cli.OptString) int {
	pins, err := allPins(e)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return e.Answer(asJSON, nil, map[string][]pinned{"pins": pins}, func() error {
		if len(pins) == 0 {
			e.Notice("no maps are pinned; nvtrace --map-pin NAME --attach probe.o -- command pins those of a run")
		}
		for _, p := range pins {
			if _, err := fmt.Fprintf(e.Stdout, "%-20s %s\n", p.Name, cmp.Or(p.Error, strings.Join(p.Maps, ", "))); err != nil {
				return err
			}
		}
		return nil
	})
}

func allPins(e *cli.Env) ([]pinned, error) {
	pins := []pinned{}
	root, err := owned.Open(pinsDir(e.Getenv))
	if errors.Is(err, os.ErrNotExist) {
		return pins, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	list, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	for _, d := range list {
		p, err := newPinFolder(e.Getenv, d.Name())
		if err != nil {
			continue
		}
		one := pinned{Name: p.name, Maps: []string{}}
		m, _, done, err := p.read()
		if err != nil {
			one.Error = err.Error()
			pins = append(pins, one)
			continue
		}
		for _, x := range m.All {
			one.Maps = append(one.Maps, x.Name)
		}
		done()
		pins = append(pins, one)
	}
	return pins, nil
}

// dump prints the maps as they are now.
func (p *pinFolder) dump(e *cli.Env) error {
	m, mem, done, err := p.read()
	if err != nil {
		return err
	}
	defer done()
	for _, x := range m.All {
		t, err := m.Read(mem, x)
		if err == nil {
			err = t.Print(e.Stdout, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pinFolder) set(texts []string) error {
	m, mem, done, err := p.read()
	if err != nil {
		return err
	}
	defer done()
	for _, text := range texts {
		s, err := object.ParseMapSetting(text)
		if err == nil {
			err = hostmaps.Change(m, mem, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes the maps; a run that has them keeps them to its end.
func (p *pinFolder) remove() error {
	pins, err := owned.Open(filepath.Dir(p.dir))
	if err != nil {
		return err
	}
	defer pins.Close()
	if _, err := pins.Lstat(p.name); err != nil {
		return err
	}
	return pins.RemoveAll(p.name)
}
