package sass_test

import (
	"fmt"
	"log"
	"os"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
)

// The machine code of a kernel, as an assembler would write it.
func Example() {
	image, err := os.ReadFile("../testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		log.Fatal(err)
	}
	cubin, err := fatbin.NewCubinEditor(image, nil)
	if err != nil {
		log.Fatal(err)
	}
	k, err := cubin.Code(cubin.Cubin().Kernels[0].Name)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(fatbin.Demangle(k.Name))
	for i, w := range sass.Words(k.Code)[:6] {
		in, ok := sass.Decode(90, w)
		if !ok {
			log.Fatalf("unknown instruction %v", w)
		}
		fmt.Printf("/*%04x*/ %s\n", i*sass.WordSize, in.AppendText(nil, i*sass.WordSize))
	}
	// Output:
	// void shapes::reduce<double, 32>(double*, double const*, Pair)
	// /*0000*/ LDC R1, c[0x0][0x28]
	// /*0010*/ S2R R9, SR_TID.X
	// /*0020*/ LDC.64 R2, c[0x0][0x218]
	// /*0030*/ ULDC.64 UR8, c[0x0][0x208]
	// /*0040*/ ULDC UR4, c[0x0][0x220]
	// /*0050*/ ULDC.64 UR6, c[0x0][0x228]
}
