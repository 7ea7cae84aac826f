package channel

import "testing"

// BenchmarkRead reads a launch as libcuda writes it: constants, arguments, two QMDs, releases.
func BenchmarkRead(b *testing.B) {
	var words []uint32
	inc := func(sub, method, n int) { words = append(words, uint32(1<<29|n<<16|sub<<13|method/4)) }
	inline := func(address uint64, data []uint32) {
		inc(1, 0x188, 2)
		words = append(words, uint32(address>>32), uint32(address))
		inc(1, 0x180, 1)
		words = append(words, uint32(4*len(data)))
		inc(1, 0x1b0, 1)
		words = append(words, 0x41)
		words = append(words, uint32(3<<29|len(data)<<16|1<<13|0x1b4/4))
		words = append(words, data...)
	}
	qmd := make([]uint32, MaxQMDSize/4)
	qmd[583/32] |= 4 << (580 % 32)
	inline(0x7f82a6280000, make([]uint32, 0x84))
	inline(0x7f82a6280210, make([]uint32, 8))
	inline(0x204e10000, qmd)
	inline(0x204e0c000, qmd)
	inc(1, 0x2b4, 1)
	words = append(words, 0x204e0c0)
	inc(1, 0x2c0, 1)
	words = append(words, 0xa)
	var r Reader
	r.Subchannels.Host, r.Subchannels.Engine[1] = ClassOf(0xc86f), ClassOf(0xcbc0)
	launches := 0
	for b.Loop() {
		r.Read(words, 0x200c00000, func(w Work) bool {
			if w.Kind == Kernel || w.Kind == Null {
				launches++
			}
			return true
		})
	}
	if launches == 0 {
		b.Fatal("no launch is read")
	}
}
