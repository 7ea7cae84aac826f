package main

import "testing"

// TestReader holds each kind of definition.
func TestReader(t *testing.T) {
	r := reader{number: "cbc0"}
	err := r.read(`
#define HOPPER_COMPUTE_A    0xCBC0
#define NVCBC0_LAUNCH_DMA                       0x01b0
#define NVCBC0_LAUNCH_DMA_DST_MEMORY_LAYOUT        0:0
#define NVCBC0_LAUNCH_DMA_DST_MEMORY_LAYOUT_PITCH  0x00000001  // one row
#define NVCBC0_CALL_MME_MACRO(j)       (0x3800+(j)*8)
#define NVCBC0_GP_ENTRY0_FETCH                     0:0
#define NVCBC0_WFI                        (0x00000078)
#define NVCBC0_NOTIFIER_STATUS                   15:0
#define NVCBC0_NOTIFIER_STATUS_DONE        0x00000002
#define NVCBC0_QMDV04_00_GRID_WIDTH      MW(1055:1024)
#define NVCBC0_QMDV04_00_RELEASE_ENABLE(i)  MW((320+(i)*16):(320+(i)*16))
#define NVCBC0_QMDV04_00_RELEASE_ENABLE_TRUE  0x00000001
#define NVCBC0_QMDV04_00_TWO(i,j)  MW((886+(i)*416+(j)*202):(886+(i)*416+(j)*202))
`)
	if err != nil {
		t.Fatal(err)
	}
	const want = "m 01b0 LAUNCH_DMA\nf 0:0 DST_MEMORY_LAYOUT\nv 1 PITCH\nm 3800+8 CALL_MME_MACRO\nm 0078 WFI\n" +
		"q 4.0\nf 1055:1024 GRID_WIDTH\nf 320:320+16 RELEASE_ENABLE\nv 1 TRUE\nf 886:886+416+202 TWO\n"
	if got := r.out.String(); got != want || r.name != "HOPPER_COMPUTE_A" {
		t.Errorf("%s:\n%s", r.name, got)
	}
	for _, bad := range []string{"#define NVCBC0_ODD 0x0102", "#define NVCBC0_QMDV04_00_X (a+b)"} {
		if err := r.read(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
