package look

import (
	"cmp"
	"fmt"
	"io"

	"nvtrace/ioctl/channels"
)

// WritePushbuffers prints the last pieces of channels as a disassembler prints code.
func WritePushbuffers(w io.Writer, v *channels.View, list []channels.ChannelPieces) error {
	for _, cp := range list {
		u := cp.UserData
		text := fmt.Sprintf("USERD %#x, ring %#x of %d entries, PUT %#x GET %#x GP_PUT %d GP_GET %d",
			cp.Of.UserData, cp.Of.Ring, cp.Of.Entries, u.Put, u.Get, u.GPPut, u.GPGet)
		entry := "entry"
		if cp.Tracker != 0 {
			text = fmt.Sprintf("its ring was not read; tracker %#x", cp.Tracker)
			entry = "piece"
		}
		if _, err := fmt.Fprintf(w, "channel %d of %s: %s\n", cp.Channel, cmp.Or(cp.Of.Device, "a GPU"), text); err != nil {
			return err
		}
		r := v.Reader(cp.Of)
		for _, p := range cp.Pieces {
			if _, err := fmt.Fprintf(w, "%s %d: %d words at %#x\n", entry, p.Index, p.Entry.Words, p.Address); err != nil {
				return err
			}
			if err := r.Fprint(w, p.Words, p.Address, v.Names.Of); err != nil {
				return err
			}
		}
	}
	return nil
}
