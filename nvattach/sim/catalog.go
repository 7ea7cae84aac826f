package sim

import (
	"maps"
	"strconv"
	"strings"
)

// newCatalog builds the catalog. An entry with the ending _ptsz or _ptds, for programs whose
// default stream is the thread's, has the handler of the one without.
func newCatalog() *catalog {
	c := &catalog{versions: map[string][]version{}}
	handlers := [3]map[string]handler{driverHandlers(), runtimeHandlers(libCudart12), runtimeHandlers(libCudart13)}
	for lib, file := range []string{"cuda", "cudart12", "cudart13"} {
		names := strings.Fields(mustRead("lib/" + file + ".names"))
		c.index[lib] = make(map[string]int, len(names))
		for i, name := range names {
			e := entry{name: name, fn: handlers[lib][name], runtime: lib != libCUDA}
			for _, suffix := range []string{"_ptsz", "_ptds"} {
				if base, ok := strings.CutSuffix(name, suffix); ok {
					e.ptds = true
					if e.fn == nil {
						e.fn = handlers[lib][base]
					}
				}
			}
			c.entries[lib] = append(c.entries[lib], e)
			c.index[lib][name] = i
		}
	}
	for line := range strings.Lines(mustRead("lib/cuda.versions")) {
		f := strings.Fields(line)
		if len(f) != 3 {
			panic("BUG: lib/cuda.versions: " + line)
		}
		since, err := strconv.Atoi(f[1])
		if err != nil {
			panic("BUG: lib/cuda.versions: " + line)
		}
		c.versions[f[0]] = append(c.versions[f[0]], version{since, f[2]})
	}
	return c
}

// driverHandlers are the entries of libcuda.so.1 that are implemented.
func driverHandlers() map[string]handler {
	all := map[string]handler{}
	for _, m := range []map[string]handler{
		drvGeneral(), drvDevices(), drvContexts(), drvMemory(), drvCopies(), drvStreams(), drvCaptures(), drvModules(), drvLibraries(),
		drvLaunches(), drvGraphs(), drvGraphExecs(), drvGraphNodes(), drvPools(), drvMapped(), drvArrays(), drvLinks(),
	} {
		maps.Copy(all, m)
	}
	return all
}

// runtimeHandlers are the entries of a libcudart that are implemented. Those
// whose arguments are a driver function's are that function.
func runtimeHandlers(lib int) map[string]handler {
	drv := driverHandlers()
	all := map[string]handler{}
	for name, from := range sharedWithDriver() {
		h := drv[from]
		if h == nil {
			panic("BUG: no handler " + from)
		}
		all[name] = h
	}
	for _, m := range []map[string]handler{rtDevices(lib), rtMemory(lib), rtArrays(), rtLaunches(), rtStreams(lib), rtGraphs(lib), rtGraphNodes(lib)} {
		maps.Copy(all, m)
	}
	out, under := map[string]handler{}, underlyings()
	for name, h := range all {
		if of := under[name]; of != nil {
			h = withDriver(of, h)
		}
		out[name] = func(c *call) result { return c.keep(h(c)) }
	}
	maps.Copy(out, rtErrors())
	maps.Copy(out, rtRegistration())
	return out
}
