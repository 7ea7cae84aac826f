package interpose_test

import (
	"fmt"
	"os"
	"os/exec"

	"nvtrace/nvattach/interpose"
)

// What a program gives to the CUDA driver, without ptrace.
func ExampleListen() {
	s, err := interpose.Listen(&interpose.Options{
		Mode: interpose.ModeCapture,
		OnImage: func(im *interpose.Image) ([]byte, bool) {
			fmt.Fprintf(os.Stderr, "%s loads %s of %d bytes by %s: %s\n", im.Library, im.Format, im.Size, im.Function.Name, im.SHA256)
			return nil, false
		},
		OnGap: func(g *interpose.Gap) { fmt.Fprintln(os.Stderr, "incomplete:", g) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	cmd := exec.Command("true")
	cmd.Env = s.Env(os.Environ())
	fmt.Println(cmd.Run())
	fmt.Println(s.Close())
	// Output:
	// <nil>
	// <nil>
}
