package fatbin_test

import (
	"fmt"
	"log"

	"nvtrace/fatbin"
)

// A file is listed without decompressing what it holds; the kernels of a cubin are in its content.
func Example() {
	f, err := fatbin.Open("testdata/two.13.0.speed.fatbin", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for c, err := range f.Containers() {
		if err != nil {
			log.Fatal(err)
		}
		for i := range c.Entries {
			e := &c.Entries[i]
			fmt.Println(e.Kind(), e.Arch(), e.Compression(), e.Size(), "bytes")
			if e.Kind() != fatbin.KindELF {
				continue
			}
			image, err := e.Data(nil)
			if err != nil {
				log.Fatal(err)
			}
			cubin, err := fatbin.ParseCubin(image)
			if err != nil {
				log.Fatal(err)
			}
			for _, k := range cubin.Kernels {
				fmt.Printf("  %s: %d registers\n", fatbin.Demangle(k.Name), k.Registers)
			}
		}
	}
	// Output:
	// elf sm_80 lz4 3392 bytes
	//   use: 24 registers
	// ptx sm_80 lz4 761 bytes
}
