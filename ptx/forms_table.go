package ptx

// formTable has the forms of the opcodes in it: with which modifiers and types they go
// together, from PTX ISA 2.0 and sm_20 on. A line has opcodes, then words: each is a
// modifier that the instruction has, a|b one of them, a|b? one or none, /n its number of
// operands. Modifiers come in any order, types in that of the line. * stands for any
// modifiers but types and sizes of vectors, ** for any at all. What formSets has stands for
// its words.
//
// Sources: the syntax of every instruction in NVIDIA's PTX ISA document, compared with what
// ptxas 13.0 and 13.5 take.
const formTable = `
add|sub              INT
add                  u16x2|s16x2
add                  sat u16x2|s16x2|u32
add|sub              sat s32
add|sub              cc INT32
add|sub|mul          rn? ftz? sat? HALF
add|sub|mul          rn? BF
add|sub|mul          RND? ftz? sat? f32
add|sub|mul          RND? f64
add|sub|mul          RND? ftz? f32x2
add|sub              RND? sat? f32 f16|bf16
add|sub|min|max|neg  ** u8x4|s8x4
addc|subc            INT
addc|subc            cc INT32
addc|subc            sat s32
mul|mad|madc         lo|hi INT
mul|mad              wide u16|u32|s16|s32
mad|madc             lo|hi cc INT32
mad|madc             hi sat s32
mad|fma              RND ftz? sat? f32
mad|fma              RND f64
fma                  rn ftz? sat? HALF
fma                  rn ftz? relu HALF
fma                  RND relu? BF
fma                  rn oob relu? HALF|BF
fma                  RND ftz? f32x2
fma                  RND? sat? f32 f16|bf16
div|rem              INT
div                  approx|full ftz? f32
div                  RND ftz? f32
div                  RND f64
min|max              INT|u16x2|s16x2 /3
min|max              relu s32|s16x2 /3
min|max              ftz? NaN? HALF|f32 /3
min|max              ftz? NaN? xorsign abs HALF|f32 /3
min|max              NaN? BF /3
min|max              NaN? xorsign abs BF /3
min|max              f64 /3
min|max              ftz? NaN? abs? f32 /4
abs|neg              s16|s32|s64|BF|f64
abs|neg              ftz? HALF|f32
sad                  INT
mul24|mad24          lo|hi u32|s32
mad24                hi sat s32
copysign             f32|f64
rcp                  approx ftz? f32
rcp                  approx ftz f64
rcp                  RND ftz? f32|f64
sqrt                 approx ftz? f32
sqrt                 RND ftz? f32
sqrt                 RND f64
rsqrt                approx ftz? f32|f64
sin|cos|lg2|ex2      approx ftz? f32
sin|cos              approx ftz 2pi f32
ex2                  approx HALF
ex2                  approx ftz BF
tanh                 approx HALF|BF|f32
and|or|xor|not       BITS|pred
cnot|shl             BITS
shr                  BITS|INT
brev|clz|popc|bfi    b32|b64
bfe                  INT32
bfind                shiftamt? INT32
bmsk                 clamp|wrap b32
szext                clamp|wrap u32|s32
shf                  l|r clamp|wrap b32
lop3                 or|and|xor? b32
prmt                 f4e|b4e|rc8|ecl|ecr|rc16? b32
dp4a                 u32|s32 u32|s32
dp2a                 lo|hi u32|s32 u32|s32
mov                  b128|pred
mov                  v2|v4? BITS|INT|f32|f64
selp                 BITS|INT|f32|f64
slct                 BITS|INT|f32|f64 s32
slct                 ftz? BITS|INT|f32|f64 f32
testp                finite|infinite|number|notanumber|normal|subnormal f32|f64
setp                 eq|ne BOOL? BITS
setp                 ORD BOOL? INT
setp                 lo|ls|hi|hs BOOL? u16|u32|u64
setp                 ORD|UNO BOOL? ftz? HALF|f32
setp                 ORD|UNO BOOL? BF|f64
set                  eq|ne BOOL? u32|s32|f32|f16|bf16 BITS
set                  ORD BOOL? u32|s32|f32|f16|bf16 INT
set                  lo|ls|hi|hs BOOL? u32|s32|f32|f16|bf16 u16|u32|u64
set                  ORD|UNO BOOL? ftz? u32|s32 HALF|f32
set                  ORD|UNO BOOL? u32|s32|f32|f16|bf16 f64
set                  ORD|UNO BOOL? u32|s32 BF
set                  ORD|UNO BOOL? ftz? f32|f16 f32
set                  ORD|UNO BOOL? ftz? u16|f16 f16
set                  ORD|UNO BOOL? bf16 f16|bf16|f32
set                  ORD|UNO BOOL? u16 bf16
set                  ORD|UNO BOOL? ftz? f16x2 f16x2
set                  ORD|UNO BOOL? bf16x2 bf16x2
cvt                  I8|INT I8|INT
cvt                  sat u8 INT|s8
cvt                  sat u16 u32|u64|s8|s16|s32|s64
cvt                  sat u32 u64|s8|s16|s32|s64
cvt                  sat u64 s8|s16|s32|s64
cvt                  sat s8 INT|u8
cvt                  sat s16 u16|u32|u64|s32|s64
cvt                  sat s32 u32|u64|s64
cvt                  sat s64 u64
cvt                  f16|bf16 f16|bf16
cvt                  ftz? f32 f16|bf16|f32
cvt                  ftz? sat f32 f16|f32
cvt                  sat f16 f16
cvt                  sat? f64 f16|f32|f64
cvt                  f64 bf16
cvt                  ftz sat? f64 f32
cvt                  IRND sat? I8|INT f16|f32|f64
cvt                  IRND INT bf16
cvt                  IRND ftz sat? I8|INT|f32 f32
cvt                  IRND sat? f16 f16
cvt                  IRND bf16 bf16
cvt                  IRND sat? f32 f32
cvt                  IRND sat? f64 f64
cvt                  RND f16 bf16
cvt                  RND sat? f16 I8|INT|f64
cvt                  RND ftz? sat? f16 f32
cvt                  RND bf16 INT|f16|f64
cvt                  RND ftz? bf16 f32
cvt                  rn|rz relu? satfinite? f16|bf16 f32
cvt                  RND ftz? sat? f32 I8|INT|f64
cvt                  RND ftz? f32 bf16
cvt                  RND sat? f64 I8|INT
cvt                  RND f64 bf16
cvt                  rn|rz relu? satfinite? tf32 f32
cvt                  rna satfinite? tf32 f32
cvt                  rn|rz relu? satfinite? f16x2|bf16x2 f32
cvt                  rn satfinite relu? e4m3x2|e5m2x2 f32|f16x2
cvt                  rn relu? satfinite? bf16x2 e4m3x2|e5m2x2
cvt                  rn relu? f16x2 e4m3x2|e5m2x2
cvt                  ** SMALL
cvt                  pack|rs|scaled::n2::ue8m0 **
ld|ldu|st            * v2? SIZED
ld|ldu|st            * b128
ld|ldu|st            * v4 b8|u8|s8|b16|u16|s16|b32|u32|s32|f32
ld|st                * v4 b64|u64|s64|f64
ld|st                * v8 b32|u32|s32|f32
st                   bulk **
atom                 ATOM and|or|xor b32|b64
atom                 ATOM exch b32|b64|b128
atom                 ATOM cas BITS|b128
atom                 ATOM add u32|u64|s32|f32|f64
atom                 ATOM add noftz HALF|BF|f32
atom                 ATOM inc|dec u32
atom                 ATOM min|max u32|u64|s32|s64
atom                 ATOM add|min|max v2|v4|v8 noftz? HALF|BF|f32
red                  RED and|or|xor b32|b64
red                  RED add u32|u64|s32|f32|f64
red                  RED add noftz HALF|BF|f32
red                  RED inc|dec u32
red                  RED min|max u32|u64|s32|s64
red                  RED add|min|max v2|v4|v8 noftz? HALF|BF|f32
red                  async **
redux                sync and|or|xor b32
redux                sync add|min|max u32|s32
redux                sync min|max abs? NaN? f32
shfl                 sync? up|down|bfly|idx b32
match                any|all sync b32|b64
vote                 sync? ballot b32
vote                 sync? all|any|uni pred
`

// formSets are the lists that words of the table stand for.
var formSets = map[string]string{
	"INT":   "u16|u32|u64|s16|s32|s64",
	"INT32": "u32|u64|s32|s64",
	"I8":    "u8|s8",
	"BITS":  "b16|b32|b64",
	"HALF":  "f16|f16x2",
	"BF":    "bf16|bf16x2",
	"SIZED": "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
	"RND":   "rn|rz|rm|rp",
	"IRND":  "rni|rzi|rmi|rpi",
	"BOOL":  "and|or|xor",
	"ORD":   "eq|ne|lt|le|gt|ge",
	"UNO":   "equ|neu|ltu|leu|gtu|geu|num|nan",
	"SEM":   "relaxed|acquire|release|acq_rel",
	"ATOM":  "SEM? SCOPE? SPACE? L2::cache_hint?",
	"RED":   "relaxed|release? SCOPE? SPACE? L2::cache_hint?",
	"SCOPE": "cta|cluster|gpu|sys",
	"SPACE": "global|shared|shared::cta|shared::cluster",
	"SMALL": "e2m1x2|e2m3x2|e3m2x2|ue8m0x2|s2f6x2|e4m3x4|e5m2x4|e2m1x4|e2m3x4|e3m2x4|f16x4|bf16x4|b8x4",
}
