package emu

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"nvtrace/ptx"
)

func TestParseArg(t *testing.T) {
	read := func(name string) ([]byte, error) { return []byte("contents of " + name), nil }
	for in, want := range map[string]string{
		"u32:5": "\x05\x00\x00\x00", "s8:-1": "\xff", "u16:0x1234": "\x34\x12", "u64:-1": "\xff\xff\xff\xff\xff\xff\xff\xff",
		"f32:1.5": "\x00\x00\xc0\x3f", "f64:-2": "\x00\x00\x00\x00\x00\x00\x00\xc0", "f16:1": "\x00\x3c", "bf16:1": "\x80\x3f",
		"hex:0a0B": "\x0a\x0b", "zeros:3": "\x00\x00\x00", "buf:x.bin:out=y": "contents of x.bin",
	} {
		a, err := ParseArg(in, read)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if string(a.Bytes) != want {
			t.Errorf("%s = %q, want %q", in, a.Bytes, want)
		}
	}
	for in, want := range map[string]string{
		"5": "want TYPE:VALUE", "u33:1": `unknown type "u33"`, "u8:256": `"256" is no u8`, "f32:x": `"x" is no f32`,
		"hex:abc": "even number", "hex:zz": `"zz" is not hexadecimal`, "zeros:0": "want 1 to", "zeros:99999999999999": "want 1 to", "pred:1": "unknown type",
	} {
		if _, err := ParseArg(in, read); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", in, err, want)
		}
	}
	if a, _ := ParseArg("zeros:8:out=f", nil); a.Out != "f" {
		t.Errorf("out = %q", a.Out)
	}
	if _, err := ParseArg("buf:/nonexistent", nil); err == nil {
		t.Error("missing file is no error")
	}
}

func TestParseDim(t *testing.T) {
	if d, err := ParseDim("3, 4"); err != nil || d != (Dim3{3, 4, 1}) {
		t.Errorf("%v %v", d, err)
	}
	for _, in := range []string{"", "0", "1,2,3,4", "x", "4294967296", "-1"} {
		if _, err := ParseDim(in); err == nil {
			t.Errorf("%q is no error", in)
		}
	}
}

func TestRun(t *testing.T) {
	f, err := ptx.Parse("scale.ptx", header+`
.visible .entry scale(.param .u64 out, .param .u64 in, .param .u8 tag, .param .f32 k) {
	.reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .f32 %f<4>;
	ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in]; ld.param.f32 %f1, [k]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
	add.u64 %rd2, %rd2, %rd3; add.u64 %rd1, %rd1, %rd3; ld.global.f32 %f2, [%rd2]; mul.f32 %f3, %f2, %f1; st.global.f32 [%rd1], %f3; ret;
}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string][]byte{}
	run := &Run{File: f, Block: Dim3{X: 3}, Race: true, WriteFile: func(name string, b []byte) error { written[name] = bytes.Clone(b); return nil }}
	for _, s := range []string{"zeros:12:out=o.bin", "buf:i.bin", "u8:1", "f32:2"} {
		a, err := ParseArg(s, func(string) ([]byte, error) { return le(float32(1), float32(2), float32(3)), nil })
		if err != nil {
			t.Fatal(err)
		}
		run.Args = append(run.Args, a)
	}
	res, err := run.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := le(float32(2), float32(4), float32(6))
	if !bytes.Equal(written["o.bin"], want) || !bytes.Equal(res.Buffers[0], want) || res.Stats.ThreadInstructions != 33 || len(res.Races) != 0 {
		t.Errorf("wrote %x, %+v", written, res)
	}
	run.Block.X = 4
	if res, err = run.Do(t.Context()); !errors.Is(err, ErrAddress) || res == nil || res.Buffers[0] == nil {
		t.Errorf("a fault: %v, %v", res, err)
	}
	run.Args = run.Args[:3]
	if _, err = run.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "4 parameters, 3 arguments") {
		t.Errorf("too few arguments: %v", err)
	}
	run.Kernel = "other"
	if _, err = run.Do(t.Context()); err == nil {
		t.Error("unknown kernel is no error")
	}
}
