// Take keeps what of a process says what its GPU channels are at, for the tests of package channels:
//
//	go run ./ioctl/channels/internal/take PID snapshot.gz
package main

import (
	"fmt"
	"os"
	"strconv"

	"nvtrace/ioctl/channels"
	"nvtrace/ioctl/channels/internal/snapshot"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "take:", err)
		os.Exit(1)
	}
}

// maxMapping is the size of the largest mapping of a device that is kept.
const maxMapping = 64 << 20

// lastPieces is of how many pieces of each channel the kernels' names are kept.
const lastPieces = 64

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: take PID FILE")
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	v, err := channels.ViewOf(pid, channels.AllMemory)
	if err != nil {
		return err
	}
	defer v.Close()
	programs := v.Programs(v.Pieces(lastPieces))
	s, err := snapshot.Take(pid, maxMapping, programs)
	if err != nil {
		return err
	}
	if err := prune(s, pid); err != nil {
		return err
	}
	fmt.Printf("%d channels, %d kernels launched, %d mappings, %d pages\n", v.Channels(), len(programs), len(s.Mappings), len(s.Pages))
	return s.Save(args[1])
}

// prune drops what is not needed to find the channels, to look at them and to name their kernels.
func prune(s *snapshot.Snapshot, pid int) error {
	s.Note()
	v, err := channels.NewView(pid, s)
	if err != nil {
		return err
	}
	v.Look(true)
	if err := v.SearchNames(v.Pieces(lastPieces)); err != nil {
		return err
	}
	s.Prune()
	return nil
}
