package ptx

// featureTable has one row a line: a pattern, the PTX ISA version that
// introduced it, the least target, and the only targets that have it (a for one
// architecture, f for it and the later ones of its family). A pattern is an
// opcode with modifiers that must all be there, in any order; op|op stands for
// either, .x* for every modifier that begins so, /n for n operands. All rows
// that match an instruction count together. The rows sm_… are of targets. The row .ptr is of pointers to textures, samplers and surfaces.
//
// Sources: the "PTX ISA Notes" and "Target ISA Notes" of every instruction in
// NVIDIA's PTX ISA document; rows from ISA 2.3 on were compared with what ptxas
// 12.9 and 13.5 say ("Feature … requires PTX ISA .version …"), see
// testdata/features.txt.
const featureTable = `
activemask                     6.2 30
abs|neg.f16                    6.0 53
abs|neg.f16x2                  6.0 53
abs.f16                        6.5 53
abs.f16x2                      6.5 53
abs|neg.bf16*                  7.0 80
add|sub|mul|fma.f16            4.2 53
add|sub|mul|fma.f16x2          4.2 53
add|sub|mul.bf16*              7.8 90
fma.bf16*                      7.0 80
fma.relu                       7.0 80
fma.oob                        8.1 90
add|sub|mul|fma.f32x2          8.6 100
add|sub|fma.f32.f16            8.6 100
add|sub|fma.f32.bf16           8.6 100
add|min|max.u16x2              8.0 90
add|min|max.s16x2              8.0 90
add.sat.u16x2                  9.2 107 107a 107f 120a 120f
add.sat.s16x2                  9.2 107 107a 107f 120a 120f
add.sat.u32                    9.2 107 107a 107f 120a 120f
add|sub|mad.cc                 1.2
addc|subc                      1.2
add|sub|addc|subc.cc.u64       4.3
add|sub|addc|subc.cc.s64       4.3
mad.cc                         3.0 20
madc                           3.0 20
alloca|stacksave|stackrestore  7.3 52
applypriority|createpolicy     7.4 80
discard                        7.4 80
atom|red                       1.1 11
atom|red.b64                   1.2 12
atom|red.u64                   1.2 12
atom|red.shared                1.2 12
atom|red.f32                   2.0 20
atom|red.f64                   5.0 60
atom|red.cta                   5.0 60
atom|red.gpu                   5.0 60
atom|red.sys                   5.0 60
atom|red.relaxed               6.0 70
atom|red.acquire               6.0 70
atom|red.release               6.0 70
atom|red.acq_rel               6.0 70
atom|red.cluster               7.8 90
atom|red.f16x2                 6.2 60
atom|red.f16                   6.3 70
atom|red.bf16*                 7.8 90
atom|red.noftz.f32             9.4 90
atom.cas.b16                   6.3 70
atom.b128                      8.3 90
atom|red.v2                    8.1 90
atom|red.v4                    8.1 90
atom|red.v8                    8.1 90
atom|red|ld|st.L2::cache_hint  7.4 80
atom|red|ld|st.shared::cta     7.8
atom|red|ld|st.shared::cluster 7.8 90
red.async                      8.1 90
bar.arrive                     2.0 20
bar.red                        2.0 20
bar.warp                       6.0 30
bar.cta                        7.8
barrier                        6.0 30
barrier.cta                    7.8 30
barrier.cluster                7.8 90
barrier.cluster.relaxed        8.0 90
bfe|bfi|bfind|brev|clz|popc    2.0 20
bmsk|szext                     7.6 70
brx                            6.0 30
clmad                          9.3 100
clusterlaunchcontrol           8.6 100
clusterlaunchcontrol.multicast::cluster::all 8.6 100 100a 100f 110a 110f 120a 120f
copysign|testp                 2.0 20
sin|cos.2pi                    9.5
cp.async                       7.0 80
cp.async.bulk                  8.0 90
cp.reduce.async.bulk           8.0 90
cp.async.bulk.shared::cta.global.mbarrier* 8.6 90
cp.async.bulk.cp_mask          8.6 100
cp.async.bulk.tensor.tile::gather4 8.6 100
cp.async.bulk.tensor.tile::scatter4 8.6 100
cp.async.bulk.tensor.cta_group::1 8.6 90 100a 100f 110a 110f
cp.async.bulk.tensor.cta_group::2 8.6 90 100a 100f 110a 110f
cp.async.L2::cache_hint        7.4 80
cp.async.L2::128B              7.4 80
cvt.tf32                       7.0 80
cvt.bf16                       7.0 80
cvt.bf16x2                     7.0 80
cvt.rn.tf32                    7.8 90
cvt.rz.tf32                    7.8 90
cvt.satfinite.tf32             8.1 80
cvt.rn.satfinite.tf32          8.6 100
cvt.rz.satfinite.tf32          8.6 100
cvt.e4m3x2                     7.8 89
cvt.e5m2x2                     7.8 89
cvt.e2m1x2                     8.6 100 100a 100f 110a 110f 120a 120f
cvt.e2m3x2                     8.6 100 100a 100f 110a 110f 120a 120f
cvt.e3m2x2                     8.6 100 100a 100f 110a 110f 120a 120f
cvt.rs                         8.7 100 100a 103a
cvt.pack                       6.5 72
cvt.bf16x2.e4m3x2              9.2 100 100a 100f 110a 110f 103a 107a 120a 120f 121a
cvt.bf16x2.e5m2x2              9.2 100 100a 100f 110a 110f 103a 107a 120a 120f 121a
cvta|isspacep                  2.0 20
cvta|isspacep.param            7.7 70
isspacep.const                 3.1 20
isspacep.shared::cta           7.8
isspacep.shared::cluster       7.8 90
dp2a|dp4a                      5.0 61
elect                          8.0 90
ex2.f16*                       7.0 75
ex2.bf16*                      7.8 90
tanh                           7.0 75
tanh.bf16*                     7.8 90
fence                          6.0 70
fence.cluster                  7.8 90
fence.proxy.alias              7.5 70
fence.proxy.async*             8.0 90
fence.mbarrier_init            8.0 90
fence.proxy.tensormap::generic 8.3 90
fence.sync_restrict*           8.6 90
fns                            6.0 30
getctarank|mapa                7.8 90
griddepcontrol                 7.8 90
istypep                        4.0 30
ld.nc                          3.1 32
ld|st.relaxed                  6.0 70
ld|st.weak                     6.0 70
ld.acquire                     6.0 70
st.release                     6.0 70
ld|st.cluster                  7.8 90
ld|st.mmio                     8.2 70
ld|st.L1::*                    7.4 70
ld.L2::64B                     7.4 75
ld.L2::128B                    7.4 75
ld.L2::256B                    7.4 80
ld|st.L2::evict_*              8.8 100
ld|st.b128                     8.3 70
atom|ld|st.sys.b128            8.4 70
mov.b128                       8.3 70
ld|st.v8                       8.8 100
ld|st.v4.b64                   8.8 100
ld|st.v4.f64                   8.8 100
ld|st.v4.u64                   8.8 100
ld|st.v4.s64                   8.8 100
ld|st.param::entry             8.3
ld|st.param::func              8.3
ldmatrix                       6.5 75
ldmatrix.m16n16                8.6 75 100a 100f 110a 110f 120a 120f
ldmatrix.m8n16                 8.6 75 100a 100f 110a 110f 120a 120f
ldu                            2.0 20
lop3                           4.3 50
lop3.or                        8.2 70
lop3.and                       8.2 70
lop3.xor                       8.2 70
match                          6.0 70
max|min.f16*                   7.0 80
max|min.bf16*                  7.0 80
max|min.NaN                    7.0 80
max|min.xorsign                7.2 86
max|min.s32.relu               8.0 90
max|min.f32/4                  8.8 100
mbarrier                       7.0 80
mbarrier.parity                7.1 80
mbarrier.try_wait              7.8 90
mbarrier.expect_tx             8.0 90
mbarrier.complete_tx           8.0 90
mbarrier.cluster               8.0 90
mbarrier.relaxed               8.0 90
mbarrier.try_wait.relaxed      8.6 90
mbarrier.test_wait.relaxed     8.6 90
membar                         1.4
membar.sys                     2.0 20
mma                            6.4 70
mma.m16n8k8                    6.5 75
mma.m8n8k16                    6.5 75
mma.m8n8k32                    6.5 75
mma.m8n8k128                   7.0 75
mma.m16n8k16                   7.0 80
mma.m16n8k32                   7.0 80
mma.m16n8k64                   7.0 80
mma.tf32                       7.0 80
mma.bf16                       7.0 80
mma.f64                        7.0 80
mma.f64.m16n8k4                7.8 90
mma.f64.m16n8k8                7.8 90
mma.f64.m16n8k16               7.8 90
mma.e4m3                       8.4 89
mma.e5m2                       8.4 89
mma.e4m3.f16                   8.7 89
mma.e5m2.f16                   8.7 89
mma.sp                         7.1 80
mma.sp::ordered_metadata       8.5 80
mma.kind::*                    8.7 120 120a 120f
movmatrix                      7.8 75
multimem                       8.1 90
multimem.cp                    9.1 90
nanosleep                      6.2 70
neg.bf16*                      7.0 80
pmevent.mask                   3.0
prefetch|prefetchu             2.0 20
prefetch.tensormap             8.0 90
prefetch.L2::evict_*           7.4 80
prmt                           2.0 20
redux                          7.0 80
redux.f32                      8.6 100 100a 100f
setmaxnreg                     8.0 90 90a 100a 100f 110a 110f 120a 120f
setp|set.f16*                  4.2 53
setp|set.bf16*                 7.8 90
shf                            3.1 32
shfl                           3.0 30
shfl.sync                      6.0 30
st.async                       8.1 90
st.async.release               8.7 100
st.bulk                        8.6 100
stmatrix                       7.8 90
stmatrix.m16n8                 8.6 90 100a 100f 110a 110f 120a 120f
tcgen05                        8.6 100 100a 100f 110a 110f
tcgen05.ld.red                 8.8 100 103a 103f 110a 110f
tensormap.replace              8.3 90 90a 100a 100f 110a 110f 120a 120f
tensormap.cp_fenceproxy        8.3 90
tld4                           2.2 20
txq|suq                        1.5
vadd|vsub|vmin|vmax|vabsdiff|vshl|vshr|vmad|vset 2.0 20
vadd2|vadd4|vsub2|vsub4|vavrg2|vavrg4|vabsdiff2|vabsdiff4|vmin2|vmin4|vmax2|vmax4|vset2|vset4 3.0 30
vote                           1.2 12
vote.ballot                    2.0 20
vote.sync                      6.0 30
wgmma                          8.0 90 90a
wmma                           6.0 70
wmma.aligned                   6.3 70
wmma.m8n8k32                   6.3 75
wmma.m8n8k128                  6.3 75
wmma.s8                        6.3 72
wmma.u8                        6.3 72
wmma.bf16                      7.0 80
wmma.tf32                      7.0 80
wmma.f64                       7.0 80
rcp.approx.ftz.f64             2.1 20
rsqrt.approx.ftz.f64           4.0 20
.address_size                  2.3
.alias                         6.3 30
.b128                          8.3 70
.branchtargets                 2.1
.calltargets                   2.1
.callprototype                 2.1
.common                        5.0
.ptr                           4.3
.managed                       4.0 30
.unified                       8.0 90
.maxnreg                       1.3
.maxntid                       1.3
.maxnctapersm                  1.3
.minnctapersm                  2.0
.reqntid                       2.1
.noreturn                      6.4 30
.pragma                        2.0
.reqnctapercluster             7.8 90
.explicitcluster               7.8 90
.maxclusterrank                7.8 90
.blocksareclusters             9.0 90
.abi_preserve                  9.0 80
.abi_preserve_control          9.0 80
%laneid                        1.3
%warpid                        1.3
%nwarpid                       2.0 20
%smid                          1.3
%nsmid                         2.0 20
%clock                         1.0
%clock64                       2.0 20
%clock_hi                      5.0 20
%lanemask_eq                   2.0 20
%lanemask_le                   2.0 20
%lanemask_lt                   2.0 20
%lanemask_ge                   2.0 20
%lanemask_gt                   2.0 20
%envreg                        2.1
%globaltimer                   3.1 30
%globaltimer_lo                3.1 30
%globaltimer_hi                3.1 30
%dynamic_smem_size             4.1 20
%total_smem_size               4.1 20
%aggr_smem_size                8.1 90
%reserved_smem_offset_begin    7.6 80
%reserved_smem_offset_end      7.6 80
%reserved_smem_offset_cap      7.6 80
%clusterid                     7.8 90
%nclusterid                    7.8 90
%cluster_ctaid                 7.8 90
%cluster_nctaid                7.8 90
%cluster_ctarank               7.8 90
%cluster_nctarank              7.8 90
%is_explicit_cluster           7.8 90
%current_graph_exec            8.0 50
%pm0_64                       4.0 50
%pm1_64                       4.0 50
%pm2_64                       4.0 50
%pm3_64                       4.0 50
%pm4_64                       4.0 50
%pm5_64                       4.0 50
%pm6_64                       4.0 50
%pm7_64                       4.0 50
sm_30 3.0
sm_32 4.0
sm_35 3.1
sm_37 4.1
sm_50 4.0
sm_52 4.1
sm_53 4.2
sm_60 5.0
sm_61 5.0
sm_62 5.0
sm_70 6.0
sm_72 6.1
sm_75 6.3
sm_80 7.0
sm_86 7.1
sm_87 7.4
sm_88 9.0
sm_89 7.8
sm_90 7.8
sm_90a 8.0
sm_100 8.6
sm_100a 8.6
sm_100f 8.8
sm_101 8.6
sm_101a 8.6
sm_101f 8.8
sm_103 8.8
sm_103a 8.8
sm_103f 8.8
sm_107 9.4
sm_107a 9.4
sm_107f 9.4
sm_110 9.0
sm_110a 9.0
sm_110f 9.0
sm_120 8.7
sm_120a 8.7
sm_120f 8.8
sm_121 8.8
sm_121a 8.8
sm_121f 8.8
`
