package nvtx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"nvtrace/nvattach/preload"
)

// Variable is what names the library to programs.
const Variable = "NVTX_INJECTION64_PATH"

// file is what the library is called; package api knows it by that.
const file = "libnvtrace-nvtx.so"

// A Library is the library in a file of its own.
type Library struct {
	folder *preload.Folder
}

// ErrTaken says that programs load another library already.
var ErrTaken = errors.New(Variable + " is set: another tool takes the ranges")

// Install writes the library into a folder of its own in dir, and returns with it the environment
// in which programs load it. The error is ErrTaken where they load another one.
func Install(dir string, env []string) (*Library, []string, error) {
	for _, v := range env {
		if strings.HasPrefix(v, Variable+"=") {
			return nil, nil, ErrTaken
		}
	}
	if len(library) == 0 {
		return nil, nil, fmt.Errorf("no library for NVTX on %s", runtime.GOARCH)
	}
	folder, err := preload.NewFolder(dir, "nvtrace-nvtx-")
	if err != nil {
		return nil, nil, err
	}
	// The program may be another user's.
	name := filepath.Join(folder.Path, file)
	err = os.Chmod(folder.Path, 0o755)
	if err == nil {
		err = os.WriteFile(name, library, 0o755)
	}
	if err != nil {
		return nil, nil, errors.Join(err, folder.Remove())
	}
	return &Library{folder}, append(slices.Clip(env), Variable+"="+name), nil
}

// Remove removes the file, but where a program still has it. nil is fine.
func (l *Library) Remove() error {
	switch {
	case l == nil:
		return nil
	case l.folder.Mapped():
		return l.folder.Leave()
	}
	return l.folder.Remove()
}
