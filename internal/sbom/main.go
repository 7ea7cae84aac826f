// Command sbom prints a software bill of materials, in SPDX's JSON, of a Go binary: the
// modules that it was built from, as the binary itself says.
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// A document is SPDX 2.3's.
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []pkg          `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	SPDXID           string     `json:"SPDXID"`
	Name             string     `json:"name"`
	VersionInfo      string     `json:"versionInfo"`
	DownloadLocation string     `json:"downloadLocation"`
	FilesAnalyzed    bool       `json:"filesAnalyzed"`
	Checksums        []checksum `json:"checksums,omitempty"`
	ExternalRefs     []ref      `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type ref struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom BINARY VERSION")
		os.Exit(2)
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err == nil {
		err = write(os.Stdout, info, os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write writes the document of a program with that version. Its time is the commit's, so
// that the same commit gives the same bytes.
func write(out io.Writer, info *debug.BuildInfo, version string) error {
	created := time.Unix(0, 0).UTC().Format(time.RFC3339)
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			created = s.Value
		}
	}
	const root = "SPDXRef-program"
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: info.Main.Path + "-" + version,
		DocumentNamespace: "https://spdx.org/spdxdocs/" + info.Main.Path + "-" + version,
		CreationInfo:      creation{created, []string{"Tool: " + info.Main.Path + "/internal/sbom", "Tool: " + info.GoVersion}},
		Packages:          []pkg{{SPDXID: root, Name: info.Main.Path, VersionInfo: version, DownloadLocation: "NOASSERTION"}},
		Relationships:     []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", root}},
	}
	add := func(id, name, version, url string, sums []checksum) {
		d.Packages = append(d.Packages, pkg{
			SPDXID: id, Name: name, VersionInfo: version, DownloadLocation: "NOASSERTION", Checksums: sums,
			ExternalRefs: []ref{{"PACKAGE-MANAGER", "purl", url}},
		})
		d.Relationships = append(d.Relationships, relationship{root, "DEPENDS_ON", id})
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	add("SPDXRef-stdlib", "stdlib", goVersion, "pkg:golang/stdlib@"+goVersion, nil)
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		sums, err := checksums(m.Sum)
		if err != nil {
			return fmt.Errorf("module %s: %w", m.Path, err)
		}
		add(fmt.Sprintf("SPDXRef-module-%d", i), m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version, sums)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	return e.Encode(d)
}

// checksums turns a sum of go.sum, "h1:" and base64, into hex.
func checksums(sum string) ([]checksum, error) {
	text, ok := strings.CutPrefix(sum, "h1:")
	if !ok {
		return nil, nil
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return []checksum{{"SHA256", hex.EncodeToString(b)}}, nil
}
