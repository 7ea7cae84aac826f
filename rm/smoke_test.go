package rm

import ("testing";"fmt")

func TestSmoke(t *testing.T) {
	for _, v := range []string{"535.288.01", "550.163.01", "560.35.03", "570.211.01", "580.142", "590.48.01", "595.45.04"} {
		vv, _ := ParseVersion(v)
		a := Load(vv)
		n, p, cl, al, ls, u, ut, e, ex, em, st,k,sw,nl,dr := 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,0,0,0,0
		for range a.Modesets() {k++}
		for range a.NVSwitches() {sw++}
		for range a.NVLinks() {nl++}
		for range a.DRMs() {dr++}
		for c := range a.Controls() { n++; if c.Params != nil { p++ }; if c.Exported {ex++}; em += len(c.Embedded) }
		for c := range a.Classes() { cl++; if c.Alloc != nil {al++}; if c.Listed {ls++} }
		for c := range a.UVMs() { if c.Test {ut++} else {u++} }
		for range a.Escapes() { e++ }
		for range a.Structs() { st++ }
		fmt.Println(a.Version(), a.Exact(), "ctl", n, ex, p, "cls", cl, ls, al, "uvm", u, ut, "esc", e, "emb", em, "structs", st, k,sw,nl,dr)
	}
	fmt.Println(Newest().ControlGroup(0x2080a083), Status(0x1f), Status(0x9999))
}
