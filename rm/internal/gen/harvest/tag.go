package harvest

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"testing/fstest"
)

// Tag reads the files of one tag of a git repository into memory, without a
// checkout. It needs git.
func Tag(repo, tag string) (fs.FS, error) {
	roots, err := present(repo, tag)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("git", append([]string{"-C", repo, "archive", "--format=tar", tag, "--"}, roots...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("git archive %s: %w", tag, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("git archive %s: %w", tag, err)
	}
	tree, err := untar(out)
	if err != nil { // let git end before it is waited for
		_, _ = io.Copy(io.Discard, out)
	}
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return nil, fmt.Errorf("git archive %s of %s: %w", tag, repo, err)
	}
	return tree, nil
}

// present lists those of roots that the tag has.
func present(repo, tag string) ([]string, error) {
	var out []string
	for _, r := range roots() {
		if exec.Command("git", "-C", repo, "cat-file", "-e", tag+":"+r).Run() == nil {
			out = append(out, r)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no tag %s of the open kernel modules", repo, tag)
	}
	return out, nil
}

const maxSource = 16 << 20 // no source file is nearly as long

func untar(r io.Reader) (fstest.MapFS, error) {
	tree := fstest.MapFS{}
	for t := tar.NewReader(r); ; {
		hdr, err := t.Next()
		if errors.Is(err, io.EOF) {
			return tree, nil
		}
		if err != nil {
			return nil, err
		}
		if hdr.Typeflag != tar.TypeReg {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(t, maxSource))
		if err != nil {
			return nil, err
		}
		tree[hdr.Name] = &fstest.MapFile{Data: b}
	}
}
