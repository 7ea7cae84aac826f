package channels

import (
	"encoding/binary"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// ncclArgs makes the arguments of a kernel of NCCL's with one work of a kind; storage says where that is.
func ncclArgs(kind uint32, storage byte, offset uint32, work []byte) []byte {
	le := binary.LittleEndian
	b := make([]byte, 4096)
	le.PutUint64(b, 0x7f0000001000)
	le.PutUint64(b[8:], 0b111) // three channels
	b[16] = storage
	le.PutUint32(b[20:], 0xffff)
	le.PutUint64(b[24:], 0x7e0000000000)
	le.PutUint32(b[32:], kind<<15|40<<17)
	le.PutUint32(b[36:], offset)
	le.PutUint64(b[40:], 1)
	if storage == 0 {
		copy(b[offset:], work)
	}
	return b
}

// TestNCCL reads structs as NCCL's header has them (src/include/device.h).
func TestNCCL(t *testing.T) {
	le := binary.LittleEndian
	old := make([]byte, 96) // of 2.29
	old[0], old[1], old[2] = 0, 2, 16
	le.PutUint32(old[4:], 1)
	le.PutUint64(old[8:], 0x7fab00000000)
	le.PutUint64(old[16:], 0x7fab00100000)
	le.PutUint64(old[56:], 400)
	le.PutUint64(old[64:], 300)
	le.PutUint64(old[72:], 200)
	padded := make([]byte, 128) // of 2.30
	copy(padded, old[:8])
	copy(padded[24:], old[8:24])
	copy(padded[80:], old[56:80])
	peer := make([]byte, 48)
	le.PutUint64(peer[16:], 4096)
	le.PutUint64(peer[24:], ^uint64(0))
	le.PutUint32(peer[32:], 3)
	ring := &flat{0x7e0000000000, make([]byte, 0x1000)}
	copy(ring.b[0x100:], old)
	want := NCCL{Operation: "AllReduce", Comm: "0x7f0000001000", Channels: 3, Works: 1, Elements: 900}
	root := want
	root.Operation, root.Root = "Reduce", new(1)
	for _, test := range []struct {
		name string
		args []byte
		want *NCCL
	}{
		{"ncclDevKernel_AllReduce_Sum_f32_RING_LL", ncclArgs(1, 0, 96, old), &want},
		{"_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", ncclArgs(1, 0, 96, padded), &want},
		{"ncclDevKernel_AllReduce_Sum_f32_RING_LL", ncclArgs(1, 1, 0x10100, nil), &want},
		{"ncclDevKernel_Reduce_Sum_f32_RING_LL", ncclArgs(1, 0, 96, padded), &root},
		{"ncclDevKernel_SendRecv", ncclArgs(0, 0, 96, peer), &NCCL{Operation: "SendRecv", Comm: "0x7f0000001000", Channels: 3, Works: 1, SendTo: new(3), SendBytes: 4096}},
		{"ncclDevKernel_SendRecv", ncclArgs(0, 1, 0x2000, nil), &NCCL{Operation: "SendRecv", Comm: "0x7f0000001000", Channels: 3, Works: 1}}, // memory that can't be read
		{"ncclDevKernel_SendRecv", ncclArgs(0, 0, 96, peer)[:40], nil},
		{"ncclDevKernel_AllReduce_Sum_f32_RING_LL", make([]byte, 4096), nil},
		{"my_ncclDevKernel_AllReduce", ncclArgs(1, 0, 96, old), nil},
	} {
		if got := ncclOf(ring, test.name, test.args); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestNCCLSeen reads the arguments of an all-reduce of 1,048,576 floats in PyTorch 2.11 with NCCL 2.28.9, which hung on
// an H200 as the other rank did not join.
func TestNCCLSeen(t *testing.T) {
	text, err := os.ReadFile("testdata/nccl.txt")
	if err != nil {
		t.Fatal(err)
	}
	var args []byte
	for word := range strings.FieldsSeq(string(text)) {
		n, err := strconv.ParseUint(word, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		args = binary.LittleEndian.AppendUint64(args, n)
	}
	got := ncclOf(&flat{}, "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", args)
	want := &NCCL{Operation: "AllReduce", Comm: "0x7f7481e00000", Channels: 24, Works: 1, Elements: 1 << 20}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
