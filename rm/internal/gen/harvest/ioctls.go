package harvest

import (
	"regexp"
	"strings"

	"nvtrace/internal/gen/ctoken"
	"nvtrace/rm/internal/gen/facts"
)

// set gives a request its struct, if there is one of that name.
func (h *harvest) set(x *facts.Ioctl, names ...string) bool {
	for _, n := range names {
		if n == "" {
			continue
		}
		if k, s, ok := h.f.Resolve(n); ok {
			x.Params, x.Size = k, s
			return true
		}
	}
	return false
}

var uvmRoute = regexp.MustCompile(`UVM_ROUTE_CMD_\w+\(\s*(UVM_\w+)`)

func (h *harvest) uvm() {
	src := h.read("kernel-open/nvidia-uvm/uvm.c") + h.read("kernel-open/nvidia-uvm/uvm_test.c")
	routed := map[string]bool{"UVM_DEINITIALIZE": true} // a case of its own
	for _, m := range uvmRoute.FindAllStringSubmatch(src, -1) {
		routed[m[1]] = true
	}
	u := h.units["uvm"]
	for _, n := range u.pre.Order {
		if !strings.HasPrefix(n, "UVM_") || u.pre.All[n].Func {
			continue
		}
		x := facts.Ioctl{Name: n, Impl: routed[n]}
		if !h.set(&x, n+"_PARAMS") && !routed[n] {
			continue
		}
		var ok bool
		if x.Nr, ok = u.value(n); !ok {
			continue
		}
		if strings.HasSuffix(u.pre.All[n].File, "uvm_test_ioctl.h") {
			h.f.UVMTest = append(h.f.UVMTest, x)
		} else {
			h.f.UVM = append(h.f.UVM, x)
		}
		delete(routed, n)
	}
	for n := range routed {
		h.fail("uvm: %s is dispatched and has no number", n)
	}
}

var kmsEntry = regexp.MustCompile(`ENTRY\w*\(\s*(NVKMS_IOCTL_\w+)\s*,\s*(\w+)`)

func (h *harvest) kms() {
	params := map[string]string{}
	for _, m := range kmsEntry.FindAllStringSubmatch(h.read("src/nvidia-modeset/src/nvkms.c"), -1) {
		params[m[1]] = "NvKms" + m[2] + "Params"
	}
	for _, e := range h.units["kms"].par.Enums {
		if len(e.Values) == 0 || !strings.HasPrefix(e.Values[0].Name, "NVKMS_IOCTL_") {
			continue
		}
		for _, v := range e.Values {
			x := facts.Ioctl{Name: v.Name, Nr: uint64(v.Number), Impl: params[v.Name] != ""}
			if x.Impl && !h.set(&x, params[v.Name]) {
				h.fail("kms: %s: no layout of %s", v.Name, params[v.Name])
			}
			h.f.KMS = append(h.f.KMS, x)
		}
	}
	if len(h.f.KMS) == 0 {
		h.fail("kms: no commands found")
	}
}

var nvswitchDispatch = regexp.MustCompile(`NVSWITCH_DEV_CMD_DISPATCH\w*\(\s*(CTRL_NVSWITCH_\w+)\s*,\s*\w+\s*,\s*(\w+)`)

func (h *harvest) nvswitch() {
	params := map[string]string{}
	for _, m := range nvswitchDispatch.FindAllStringSubmatch(h.read("src/common/nvswitch/kernel/nvswitch.c"), -1) {
		params[m[1]] = m[2]
	}
	u := h.units["nvswitch"]
	for _, n := range u.pre.Order {
		m := u.pre.All[n]
		switch {
		case m.Func:
		case strings.HasPrefix(n, "IOCTL_NVSWITCH_") && n != "IOCTL_NVSWITCH_H_":
			if v, ok := u.value(n); ok {
				x := facts.Ioctl{Name: n, Nr: v, Impl: true}
				h.set(&x, switchStruct(m.Body))
				h.f.NVSwCtl = append(h.f.NVSwCtl, x)
			}
		case strings.HasPrefix(n, "CTRL_NVSWITCH_") && strings.Contains(m.File, "ctrl_dev_nvswitch"):
			v, ok := u.value(n)
			if !ok {
				continue
			}
			x := facts.Ioctl{Name: n, Nr: v, Impl: params[n] != ""}
			guess := "NVSWITCH_" + strings.TrimPrefix(n, "CTRL_NVSWITCH_")
			found := h.set(&x, params[n], guess+"_PARAMS", "NVSWITCH_CTRL_"+strings.TrimPrefix(n, "CTRL_NVSWITCH_")+"_PARAMS", guess)
			if !found && x.Impl {
				h.fail("nvswitch: %s: no layout of %s", n, params[n])
			}
			if !found && strings.Contains(n, "COUNTERS_") { // names of bits, not of commands
				continue
			}
			h.f.NVSwitch = append(h.f.NVSwitch, x)
		}
	}
}

// switchStruct finds the struct in _IOWR(type, nr, struct).
func switchStruct(body []ctoken.Token) string {
	for i := 0; i+1 < len(body); i++ {
		if n := body[i+1].Text; body[i].Text == "," && strings.HasPrefix(n, "NVSWITCH_") && strings.HasSuffix(n, "PARAMS") {
			return n
		}
	}
	return ""
}

var nvlinkCase = regexp.MustCompile(`case (CTRL_NVLINK_\w+):|NVLINK_IOC_GET_BUF\(\s*\w+\s*,\s*(\w+)\s*\)`)

func (h *harvest) nvlink() {
	params := map[string]string{}
	var open []string
	for _, m := range nvlinkCase.FindAllStringSubmatch(h.read("src/common/nvlink/kernel/nvlink/interface/nvlink_ioctl_entry.c"), -1) {
		if m[1] != "" {
			open = append(open, m[1])
			continue
		}
		for _, o := range open {
			if params[o] == "" {
				params[o] = m[2]
			}
		}
		open = nil
	}
	u := h.units["nvlink"]
	for _, n := range u.pre.Order {
		if !strings.HasPrefix(n, "CTRL_NVLINK_") || u.pre.All[n].Func {
			continue
		}
		if v, ok := u.value(n); ok {
			x := facts.Ioctl{Name: n, Nr: v, Impl: params[n] != ""}
			h.set(&x, strings.ToLower(strings.TrimPrefix(n, "CTRL_")), params[n])
			h.f.NVLink = append(h.f.NVLink, x)
		}
	}
}

func (h *harvest) drm() {
	u := h.units["drm"]
	for _, n := range u.pre.Order {
		m := u.pre.All[n]
		if !strings.HasPrefix(n, "DRM_IOCTL_NVIDIA_") || m.Func {
			continue
		}
		v, ok := u.value(n)
		if !ok {
			continue
		}
		x := facts.Ioctl{Name: n, Nr: v, Impl: true}
		for i := 0; i+1 < len(m.Body); i++ {
			if m.Body[i].Text == "struct" && !h.set(&x, m.Body[i+1].Text) {
				h.fail("drm: %s: no layout of %s", n, m.Body[i+1].Text)
			}
		}
		h.f.DRM = append(h.f.DRM, x)
	}
}
