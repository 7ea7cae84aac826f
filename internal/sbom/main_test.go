package main

import (
	"bytes"
	"encoding/json"
	"runtime/debug"
	"testing"
)

func TestWrite(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.0", Main: debug.Module{Path: "nvtrace"},
		Deps: []*debug.Module{
			{Path: "a/b", Version: "v1.2.3", Sum: "h1:AAECAw=="},
			{Path: "old", Version: "v1", Replace: &debug.Module{Path: "new", Version: "v2"}},
		},
		Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}},
	}
	var out bytes.Buffer
	if err := write(&out, info, "0.1.0"); err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.CreationInfo.Created != "2026-01-02T03:04:05Z" || len(d.Packages) != 4 || len(d.Relationships) != 4 {
		t.Fatalf("%+v", d)
	}
	if p := d.Packages[2]; p.ExternalRefs[0].Locator != "pkg:golang/a/b@v1.2.3" || p.Checksums[0].Value != "00010203" {
		t.Errorf("%+v", p)
	}
	if p := d.Packages[3]; p.Name != "new" || p.VersionInfo != "v2" {
		t.Errorf("%+v", p)
	}
	info.Deps[0].Sum = "h1:?"
	if err := write(&out, info, "0.1.0"); err == nil {
		t.Error("a sum that is no base64 was taken")
	}
}
