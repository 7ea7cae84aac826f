package ptx_test

import (
	"fmt"
	"log"
	"os"

	"nvtrace/ptx"
)

const kernel = `.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 p)
{
	.reg .b64 %rd<2>;
	.reg .pred %p;
	ld.param.u64 %rd1, [p];
	@%p st.global.u32 [%rd1], 1;
	ret;
}
`

// Counting the stores of a kernel that really happen.
func ExampleWeaver() {
	f, err := ptx.Parse("k.ptx", kernel, nil)
	if err != nil {
		log.Fatal(err)
	}
	w := ptx.NewWeaver(f)
	counter := w.Fresh('_', "stores")
	w.Module(".global .align 8 .u64 " + counter + ";")

	b := ptx.NewBuilder(&ptx.BuildOptions{Version: f.Version, Target: f.Target()})
	b.Red(".relaxed.gpu", ptx.SpaceGlobal, "add", ptx.U64, ptx.Addr(ptx.Name(counter), 0), ptx.Imm(1))
	code, err := b.Source()
	if err != nil {
		log.Fatal(err)
	}
	st := f.Sites(f.Lookup("k"))
	for _, a := range st.Accesses {
		if a.Class == ptx.AccessStore {
			if err := w.Before(st, a.Stmt, code); err != nil {
				log.Fatal(err)
			}
		}
	}
	out, err := w.Source()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(out)
	// Output:
	// .version 7.0
	// .target sm_70
	// .address_size 64
	// .global .align 8 .u64 _nvtstores1;
	// .visible .entry k(.param .u64 p)
	// {
	// 	.reg .b64 %rd<2>;
	// 	.reg .pred %p;
	// 	ld.param.u64 %rd1, [p];
	// 	{
	// 	@!%p bra $nvtskip2;
	// 	red.relaxed.gpu.global.add.u64 [_nvtstores1], 1;
	// $nvtskip2:
	// 	}
	// 	@%p st.global.u32 [%rd1], 1;
	// 	ret;
	// }
}

func ExampleWriteSites() {
	f, err := ptx.Parse("k.ptx", kernel, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := ptx.WriteSites(os.Stdout, f, nil); err != nil {
		log.Fatal(err)
	}
	// Output:
	// .entry k at 4:1, entry probe at 7:16
	//   param p .u64 offset 0 size 8 align 8
	//   reg .b64 %rd<2>
	//   reg .pred %p
	//   8:2 load ld.param.u64 .param [p] 8 bytes (reads)
	//   9:2 store @%p st.global.u32 .global [%rd1] 4 bytes (writes)
	//   10:2 exit ret (ret)
	//   block 0 6:2 to 10:2 ->
}
