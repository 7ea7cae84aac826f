package harvest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/api/internal/gen/facts"
	"nvtrace/nvattach/api/internal/gen/pack"
)

// Two releases of a library, in headers of our own.
const curand1 = `
#include <stddef.h>
#define CURAND_VER_MAJOR 7
typedef enum curandStatus { CURAND_STATUS_SUCCESS = 0, CURAND_STATUS_OLD = 9 } curandStatus_t;
typedef struct curandGenerator_st *curandGenerator_t;
curandStatus_t curandCreate(curandGenerator_t *g, int kind);
curandStatus_t curandGone(curandGenerator_t g, const char *name);
static inline int curandInline(void) { return 1; }
int otherFunction(void);
`

const curand2 = `
#include <stddef.h>
#define CURAND_VER_MAJOR 8
typedef enum curandStatus { CURAND_STATUS_SUCCESS = 0, CURAND_STATUS_NEW = 10 } curandStatus_t;
typedef struct curandGenerator_st *curandGenerator_t;
typedef struct curandShape { unsigned x, y, z; } curandShape;
curandStatus_t curandCreate(curandGenerator_t *g, curandShape shape, size_t n);
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "lib", "include"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lib", "include", name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestHeadersToTable follows headers through facts and the packed file to what
// package api makes of them.
func TestHeadersToTable(t *testing.T) {
	need.Tool(t, "gcc", "")
	s := facts.NewSet("curand")
	for i, text := range []string{curand1, curand2} {
		results, err := Extract(fmt.Sprintf("1.%d", 9+i), write(t, "curand.h", text))
		if err != nil {
			t.Fatal(err)
		}
		if len(results) != 1 || results[0].Release.Major != 7+i {
			t.Fatalf("%+v", results)
		}
		s.Add(results[0].Release)
		for name, f := range results[0].Funcs {
			if err := s.Funcs.Put(name, results[0].Release.Name, f); err != nil {
				t.Fatal(err)
			}
		}
		for name, f := range results[0].Types {
			if err := s.Types.Put(name, results[0].Release.Name, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s.Funcs["otherFunction"] != nil {
		t.Error("a function of another name was taken")
	}
	text, err := s.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`[{"release":"1.9","major":7},{"release":"1.10","major":8}]`,
		`{"f":"curandGone","v":"1.9-1.9","d":["curandStatus_t",[["g","curandGenerator_t"],["name","char const*"]]]}`,
		`{"t":"curandGenerator_t","v":"1.9-","d":["handle"]}`,
		`{"t":"curandShape","v":"1.10-","d":["struct",12,4,[["x",0,"unsigned int"],["y",4,"unsigned int"],["z",8,"unsigned int"]]]}`,
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	again, err := facts.Parse("curand", text)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := again.Append(nil); err != nil || string(b) != string(text) {
		t.Errorf("read and written again (%v):\n%s", err, b)
	}
	packed, err := pack.Encode([]*facts.Set{again})
	if err != nil {
		t.Fatal(err)
	}
	table, err := api.Decode(packed)
	if err != nil {
		t.Fatal(err)
	}
	for major, want := range map[int]string{
		7: "curandStatus_t curandCreate(curandGenerator_t* g, int kind)",
		8: "curandStatus_t curandCreate(curandGenerator_t* g, curandShape shape, size_t n)",
	} {
		f := table.Lookup(api.Module{Library: api.CuRAND, Major: major}, "curandCreate")
		if f == nil || f.String() != want {
			t.Errorf("%d: got %v, want %s", major, f, want)
			continue
		}
		if !f.Failed(9) || f.ResultName(9) != "CURAND_STATUS_OLD" || f.ResultName(10) != "CURAND_STATUS_NEW" {
			t.Errorf("%d: results %s, %s", major, f.ResultName(9), f.ResultName(10))
		}
	}
	f := table.Lookup(api.Module{Library: api.CuRAND}, "curandCreate")
	if got := f.Params[1].Loc; got != (api.Loc{Place: api.PlaceInt, Index: 1, Count: 2}) {
		t.Errorf("the structure is at %+v", got)
	}
}

func TestExtractErrors(t *testing.T) {
	need.Tool(t, "gcc", "")
	if _, err := Extract("1.0", t.TempDir()); err == nil || !strings.Contains(err.Error(), "no header") {
		t.Errorf("an empty folder: %v", err)
	}
	for text, want := range map[string]string{
		"#include <nowhere.h>\n":                        "nowhere.h",
		"#define CURAND_VER_MAJOR 1\nno_t curandF();\n": "no_t",
	} {
		if _, err := Extract("1.0", write(t, "curand.h", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestCompilerAgrees has g++ compare every function's facts with the header's
// own declaration, which C linkage does not let differ, and every structure's
// and enumeration's with the compiler's. NVTRACE_CUDA names the folders:
// "13.0=/dir,/dir;12.9=/dir".
func TestCompilerAgrees(t *testing.T) {
	env := os.Getenv("NVTRACE_CUDA")
	if env == "" {
		t.Skip("NVTRACE_CUDA names no headers: release=folder,folder;release=…")
	}
	need.Tool(t, "gcc", "")
	need.Tool(t, "g++", "")
	for entry := range strings.SplitSeq(env, ";") {
		release, dirs, _ := strings.Cut(entry, "=")
		t.Run(release, func(t *testing.T) { compilerAgrees(t, release, strings.Split(dirs, ",")) })
	}
}

func compilerAgrees(t *testing.T, release string, dirs []string) {
	includes, err := includeDirs(dirs)
	if err != nil {
		t.Fatal(err)
	}
	stubs := t.TempDir()
	if err := writeForeign(stubs); err != nil {
		t.Fatal(err)
	}
	includes = append(includes, stubs)
	functions, assertions := 0, 0
	for i := range sources {
		src := &sources[i]
		if find(includes, src.headers[0]) == "" {
			continue
		}
		for _, define := range src.defines() {
			r, err := src.extractRun(release, define, includes)
			if err != nil {
				t.Fatal(err)
			}
			text, f, a := src.check(r, includes)
			functions, assertions = functions+f, assertions+a
			args := []string{"-xc++", "-std=c++17", "-w", "-fsyntax-only", "-fpermissive"}
			if define != "" {
				args = append(args, "-D"+define)
			}
			for _, d := range includes {
				args = append(args, "-isystem", d)
			}
			cmd := exec.Command("g++", append(args, "-")...)
			cmd.Stdin = strings.NewReader(text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s %s: %v\n%s", src.library, define, err, firstLines(string(out), 20))
			}
		}
	}
	t.Logf("%d functions, %d sizes, offsets and values hold", functions, assertions)
}

// check makes a C++ text that compiles if the facts are right.
func (src *source) check(r *Result, includes []string) (text string, functions, assertions int) {
	var b strings.Builder
	b.WriteString(src.includes(includes) + "extern \"C\" {\n" + src.additions())
	for _, name := range slices.Sorted(maps.Keys(r.Funcs)) {
		if decl, ok := declaration(name, r.Funcs[name].([]any)); ok {
			functions++
			b.WriteString(decl)
		}
	}
	b.WriteString("}\n")
	for _, name := range slices.Sorted(maps.Keys(r.Types)) {
		fact, _ := r.Types[name].([]any)
		switch {
		case fact == nil || strings.HasPrefix(name, macroPrefix):
		case strings.HasPrefix(name, "CUstreamMemOp") && strings.HasSuffix(name, "Params_st"): // in C++ a name inside of another type
		case fact[0] == "enum" && !slices.ContainsFunc(src.flags, func(g flagGroup) bool { return g.name == name }):
			for _, v := range fact[2].([]any) {
				v := v.([]any)
				assertions++
				fmt.Fprintf(&b, "static_assert((unsigned)(%s) == (unsigned)%dLL, \"%s\");\n", v[0], v[1], v[0])
			}
		case fact[0] == "struct" || fact[0] == "union":
			assertions++
			fmt.Fprintf(&b, "static_assert(sizeof(%s) == %d && alignof(%s) == %d, \"%s\");\n", name, fact[1], name, fact[2], name)
			for _, f := range fact[3].([]any) {
				f := f.([]any)
				if f[0] != "" && len(f) == 3 {
					assertions++
					fmt.Fprintf(&b, "static_assert(__builtin_offsetof(%s, %s) == %d, \"%s.%s\");\n", name, f[0], f[1], name, f[0])
				}
			}
		case fact[0] == "handle":
			assertions++
			fmt.Fprintf(&b, "static_assert(sizeof(%s) == 8, \"%s\");\n", name, name)
		case fact[0] == "int" || fact[0] == "uint":
			assertions++
			fmt.Fprintf(&b, "static_assert(sizeof(%s) == %d && ((%s)-1 < 0) == %v, \"%s\");\n", name, fact[1], name, fact[0] == "int", name)
		}
	}
	return b.String(), functions, assertions
}

// declaration spells a function's facts in C++, if they can be.
func declaration(name string, fact []any) (string, bool) {
	result, ok := fact[0].(string)
	var params []string
	for _, p := range fact[1].([]any) {
		t, isText := p.([]any)[1].(string)
		ok = ok && isText && !strings.HasPrefix(t, "fn")
		params = append(params, t)
	}
	return fmt.Sprintf("%s %s(%s);\n", result, name, strings.Join(params, ", ")), ok
}
