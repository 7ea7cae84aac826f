package rm_test

import (
	"fmt"
	"log"

	"nvtrace/rm"
)

// The layout of a structure is that of a driver version.
func ExampleLoad() {
	v, err := rm.ParseVersion("580.142")
	if err != nil {
		log.Fatal(err)
	}
	s := rm.Load(v).Struct("NVOS54_PARAMETERS")
	fmt.Println(s.Name, s.Size, "bytes")
	for i := range s.Fields {
		fmt.Printf("%3d %s\n", s.Fields[i].Offset, s.Fields[i].Name)
	}
	// Output:
	// NVOS54_PARAMETERS 32 bytes
	//   0 hClient
	//   4 hObject
	//   8 cmd
	//  12 flags
	//  16 params
	//  24 paramsSize
	//  28 status
}
