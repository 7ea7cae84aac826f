package annotate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// counted is what --maps=json writes of @[place, line], and of an object's map beside it.
const counted = `[{"map": "@", "type": "count", "refused": 0, "entries": [
{"key": ["{\"kernel\":\"_Z1fv\",\"insn\":3,\"instruction\":\"add.u64 %rd1, %rd2, 1;\",\"file\":\"a.cu\",\"line\":30}", 30], "value": 6},
{"key": ["{\"kernel\":\"_Z1fv\",\"insn\":0,\"instruction\":\"mov.u32 %r1, %tid.x;\",\"file\":\"a.cu\",\"line\":3}", 3], "value": 30},
{"key": ["{\"kernel\":\"_Z1fv\",\"insn\":4,\"instruction\":\"ret;\"}", 0], "value": 4},
{"key": ["{\"kernel\":\"g\",\"insn\":1,\"instruction\":\"ret;\"}", 0], "value": 2}]},
{"map": "other", "type": "hash", "entries": [{"key": 1, "value": {"n": 2}}]},
{"kernel": "_Z1fv", "sites": 4}]`

// TestText: counts stand beside the lines of a source that is there, else beside their numbers; or beside instructions.
func TestText(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := Read([]byte(counted))
	if err != nil {
		t.Fatal(err)
	}
	show := func(instructions bool) string {
		var b strings.Builder
		if err := l.Text(&b, instructions); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const g = `
g: 2 (no line is known: compile with -lineinfo)
         COUNT      %   INSN  INSTRUCTION
                               …
             2  100.0      1  ret;
`
	if got, want := show(false), `f(): 40
         COUNT      %   LINE  a.cu (not found here: its lines are not shown)
            30   75.0      3  
                               …
             6   15.0     30  
             4   10.0         (instructions of no known line)
`+g; got != want {
		t.Errorf("without the source:\n%s\nwant\n%s", got, want)
	}
	lines := make([]string, 40)
	for i := range lines {
		lines[i] = "line " + string(rune('A'+i%26))
	}
	if err := os.WriteFile("a.cu", []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := show(false), `f(): 40
         COUNT      %   LINE  a.cu
                           1  line A
                           2  line B
            30   75.0      3  line C
                           4  line D
                           5  line E
                               …
                          28  line B
                          29  line C
             6   15.0     30  line D
                          31  line E
                          32  line F
             4   10.0         (instructions of no known line)
`+g; got != want {
		t.Errorf("with the source:\n%s\nwant\n%s", got, want)
	}
	if got, want := show(true), `f(): 40
         COUNT      %   INSN  INSTRUCTION
            30   75.0      0  mov.u32 %r1, %tid.x;
                               …
             6   15.0      3  add.u64 %rd1, %rd2, 1;
             4   10.0      4  ret;
`; !strings.HasPrefix(got, want) {
		t.Errorf("by instructions:\n%s\nwant\n%s", got, want)
	}
}

// TestReadSource: only files are read, by the name that the program has, or in this folder.
func TestReadSource(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("here.cu", []byte("a\n\tb"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readSource("/built/elsewhere/here.cu"); got.name != "here.cu" || len(got.lines) != 2 || got.lines[1] != "    b" {
		t.Errorf("%q", got)
	}
	if err := os.Mkdir("folder.cu", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"folder.cu", "/dev/zero", filepath.Join("no", "such.cu")} {
		if got := readSource(name); got.lines != nil {
			t.Errorf("%s: %d lines", name, len(got.lines))
		}
	}
}

// TestReadRefuses: what is no document with one map of places is refused, with what to do.
func TestReadRefuses(t *testing.T) {
	for document, want := range map[string]string{
		"":                              "not what --maps=json writes",
		`{"a": 1}`:                      "not what --maps=json writes",
		`[]`:                            "no map has places as keys; to count",
		`[{"map": "@", "entries": []}]`: "nothing was counted",
		`[{"map": "@", "entries": [{"key": ["x"], "value": 1}]}]`:                                                     "no map has places as keys",
		strings.ReplaceAll(counted, `"value": 6`, `"value": {"p50": 1}`):                                              "the values of @ are no whole numbers",
		strings.TrimSuffix(counted, "]") + ", " + strings.TrimPrefix(strings.ReplaceAll(counted, `"@"`, `"@b"`), "["): "@ and @b both have places as keys",
	} {
		if _, err := Read([]byte(document)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", document, err, want)
		}
	}
}
