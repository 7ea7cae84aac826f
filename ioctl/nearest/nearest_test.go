package nearest

import (
	"slices"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	names := []string{
		"NV2080_CTRL_CMD_BUS_GET_PCI_INFO", "NV2080_CTRL_CMD_BUS_GET_INFO", "NV_ESC_RM_ALLOC", "NV_ESC_RM_CONTROL", "report", "replay", "log",
	}
	for _, c := range []struct{ word, want string }{
		{"repotr", "report"},
		{"rpeort", "report"},
		{"repot", "report"},
		{"Report", "report"},
		{"lg", "log"},
		{"NV_ESC", "NV_ESC_RM_ALLOC NV_ESC_RM_CONTROL"},
		{"x", ""},
		{"", ""},
		{"*", ""},
		{"NV_ESC_RM_ALOC", "NV_ESC_RM_ALLOC"},
		{"NV2080_CTRL_CMD_BUSS*", "NV2080_CTRL_CMD_BUS_GET_INFO NV2080_CTRL_CMD_BUS_GET_PCI_INFO"},
		{"*BUSS*PCI*", "NV2080_CTRL_CMD_BUS_GET_PCI_INFO"},
		{"NOSUCH*", ""},
		{strings.Repeat("report", 1000), ""},
	} {
		most := 2
		if c.word == "*BUSS*PCI*" {
			most = 1
		}
		if got := strings.Join(Names(c.word, slices.Values(names), most), " "); got != c.want {
			t.Errorf("Names(%q) = %q, want %q", c.word[:min(len(c.word), 40)], got, c.want)
		}
	}
	if d := distance("ab", "ba", true); d != 1 {
		t.Errorf("exchanged letters cost %d", d)
	}
	if d := distance("bus", "xxbusyy", false); d != 0 {
		t.Errorf("a part costs %d", d)
	}
}
