package live

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/look"
	"nvtrace/ioctl/channels"
	"nvtrace/rm/channel"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// PushbufferVerb prints what channels were handed last: a process's, those of a recording, or the words in a file.
func PushbufferVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "pushbuffer", "[flags] PID|FILE")
	var pids cli.PIDList
	fs.Var(&pids, "p", "the process `PID`")
	n := fs.Int("n", 4, "print, or record, the last `N` pieces of each channel's pushbuffer")
	names := fs.Bool("names", true, "search the process's memory for the names of kernels")
	rings := ringsFlag(fs)
	out := fs.String("o", "", "record them to `FILE` instead, which nvtrace pushbuffer FILE prints")
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(words) == 1 && len(pids) == 0 && command == nil && *out == "" {
		if _, err := strconv.ParseUint(words[0], 10, 64); err != nil {
			return answer(e, printFile(e, words[0], *n))
		}
	}
	if status, ok := pidWords(e, "pushbuffer", &pids, words, command); !ok {
		return status
	}
	if len(pids) != 1 || *n <= 0 {
		return e.Fail(cli.ExitUsage, "pushbuffer wants one process or file: nvtrace pushbuffer [-n N] PID|FILE")
	}
	v, err := channels.ViewOf(pids[0], access(rings))
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer v.Close()
	list := v.Pieces(*n)
	if *out != "" && slices.ContainsFunc(list, func(cp channels.ChannelPieces) bool { return cp.Of.Device == "" }) {
		return e.Fail(cli.ExitFailed, "process %d has several GPUs and its rings can't be read: of which GPU a piece is, is not known", pids[0])
	}
	if *names {
		if err := v.SearchNames(list); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	if *out != "" {
		err = recordPieces(e, *out, v, list)
	} else {
		err = look.WritePushbuffers(e.Stdout, v, list)
	}
	return answer(e, err)
}

// answer returns the status of a verb that has printed something, or failed to.
func answer(e *cli.Env, err error) int {
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return cli.ExitOK
}

// recordPieces writes pieces to a recording.
func recordPieces(e *cli.Env, name string, v *channels.View, list []channels.ChannelPieces) error {
	if err := traces.CheckName(name); err != nil {
		return err
	}
	h := record.NewHeader(nil, v.PID, cli.Version)
	h.API = "none"
	start := time.Now()
	h.Start = start.UnixNano()
	f, finish, err := e.Create(name, cli.ModePrivate)
	if err != nil {
		return err
	}
	zip := !strings.HasSuffix(name, ".jsonl")
	w, err := traces.NewWriter(f, h, &traces.WriterOptions{Compress: zip, Blocks: zip})
	if err != nil {
		return finish(err)
	}
	for _, cp := range list {
		for i := range cp.Pieces {
			w.Write(pieceEvent(v, &cp, &cp.Pieces[i]))
		}
	}
	w.Write(&traces.Event{Kind: traces.KindEnd, Time: int64(time.Since(start)), FD: -1, Cost: new(traces.Cost)})
	return finish(w.Close())
}

// pieceEvent makes an event of a piece, the QMDs beside it, and the names of its kernels.
func pieceEvent(v *channels.View, cp *channels.ChannelPieces, p *channels.Piece) *traces.Event {
	u := &cp.UserData
	one := channels.ChannelPieces{Of: cp.Of, Pieces: []channels.Piece{*p}}
	piece := traces.Piece{
		Channel: cp.Channel, Device: deviceNumber(cp.Of.Device), UserData: cp.Of.UserData, Ring: cp.Of.Ring, Entries: cp.Of.Entries,
		Index: p.Index, Words: p.Entry.Words,
		PieceDetail: traces.PieceDetail{Tracker: cp.Tracker, Put: u.Put, Get: u.Get, GPPut: u.GPPut, GPGet: u.GPGet, Names: map[string]string{}},
	}
	for _, program := range v.Programs([]channels.ChannelPieces{one}) {
		if name := v.Names.Of(program); name != "" {
			piece.Names[fmt.Sprintf("%#x", program)] = name
		}
	}
	ev := &traces.Event{PID: int32(v.PID), TID: int32(v.PID), FD: -1}
	ev.SetPiece(&piece)
	words := make([]byte, 0, 4*len(p.Words))
	for _, word := range p.Words {
		words = binary.LittleEndian.AppendUint32(words, word)
	}
	ev.Mem = append(ev.Mem, traces.Seg{Addr: p.Address, Len: uint32(len(words)), In: words})
	beside := v.Beside(cp.Of, one.Pieces)
	for _, at := range slices.Sorted(maps.Keys(beside)) {
		ev.Mem = append(ev.Mem, traces.Seg{Addr: at, Len: uint32(len(beside[at])), In: beside[at]})
	}
	return ev
}

// printFile prints the last n pieces of each channel of a recording, or the words of a file that is none.
func printFile(e *cli.Env, name string, n int) error {
	r, _, err := new(cli.ReadFlags).Open(e, name)
	if errors.Is(err, traces.ErrNotRecording) {
		return printWords(e, name)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	type key struct {
		pid, device int32
		userData    uint64
		channel     int
	}
	m := channels.Recorded{}
	var names channels.Names
	var order []key
	found := map[key]*channels.ChannelPieces{}
	err = e.Each(r, name, e.Notice, func(ev *traces.Event) {
		p, ok := ev.Piece()
		if ev.Kind != traces.KindPushbuffer || !ok {
			return
		}
		k := key{ev.PID, p.Device, p.UserData, p.Channel}
		cp := found[k]
		if cp == nil {
			cp = &channels.ChannelPieces{Channel: p.Channel, Of: &channels.Channel{
				Device: fmt.Sprintf("/dev/nvidia%d", p.Device), UserData: p.UserData, Ring: p.Ring, Entries: p.Entries,
			}, Tracker: p.Tracker}
			found[k], order = cp, append(order, k)
		}
		cp.UserData = channel.UserData{Put: p.Put, Get: p.Get, GPPut: p.GPPut, GPGet: p.GPGet}
		cp.Pieces = append(cp.Pieces, channels.Piece{Index: p.Index, Entry: channel.Entry{Address: ev.Mem[0].Addr, Words: p.Words}, Words: wordsOf(ev.Mem[0].In)})
		for _, s := range ev.Mem[1:] {
			m[s.Addr] = slices.Clone(s.In)
		}
		for program, name := range p.Names {
			if at, err := strconv.ParseUint(program, 0, 64); err == nil {
				names.Add(at, name, "")
			}
		}
	})
	if err == nil && len(order) == 0 {
		err = fmt.Errorf("%s has no pushbuffers: nvtrace pushbuffer -o FILE PID records those of a process", name)
	}
	if err != nil {
		return err
	}
	list := make([]channels.ChannelPieces, 0, len(order))
	for _, k := range order {
		cp := found[k]
		cp.Pieces = cp.Pieces[max(len(cp.Pieces)-n, 0):]
		list = append(list, *cp)
	}
	v := channels.ViewOfPieces(m, list)
	v.Names = names
	return look.WritePushbuffers(e.Stdout, v, list)
}

// printWords prints a file of words, as memory has them, as one piece.
func printWords(e *cli.Env, name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if len(b) == 0 || len(b)%4 != 0 {
		return fmt.Errorf("%s is neither a recording nor words of 4 bytes", name)
	}
	list := []channels.ChannelPieces{{Of: new(channels.Channel), Pieces: []channels.Piece{{Words: wordsOf(b)}}}}
	v := channels.ViewOfPieces(channels.Recorded{}, list)
	return v.Reader(list[0].Of).Fprint(e.Stdout, list[0].Pieces[0].Words, 0, nil)
}

// wordsOf reads words as memory has them.
func wordsOf(b []byte) []uint32 {
	words := make([]uint32, len(b)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words
}

// deviceNumber returns the number of a GPU's node.
func deviceNumber(path string) int32 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(path, "/dev/nvidia"), 10, 16)
	return int32(n)
}
