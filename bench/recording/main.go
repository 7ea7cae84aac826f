// Command recording writes a recording of as many made-up library calls as wanted, to measure how
// fast recordings are read:
//
//	go run ./bench/recording -calls 10000000 /dev/shm/calls.nvt
package main

import (
	"flag"
	"log"
	"os"

	"nvtrace/internal/testrec"
	"nvtrace/traces"
)

func main() {
	log.SetFlags(0)
	calls := flag.Int("calls", 10_000_000, "`N` calls")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("recording: want the name of a file")
	}
	if err := write(flag.Arg(0), *calls); err != nil {
		log.Fatal(err)
	}
}

func write(name string, calls int) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w, err := traces.NewFileWriter(f, testrec.TrainingHeader(), nil)
	if err != nil {
		return err
	}
	testrec.Training(calls, w.Write)
	w.Write(&traces.Event{Kind: traces.KindEnd, FD: -1, Cost: &traces.Cost{Events: 2 * uint64(calls)}})
	return w.Close()
}
