package harvest

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"nvtrace/internal/gen/cdecl"
	"nvtrace/internal/gen/ctoken"
	"nvtrace/rm/internal/gen/cpp"
)

const predefined = `
#define __GNUC__ 12
#define __GNUC_MINOR__ 2
#define __x86_64__ 1
#define __x86_64 1
#define __LP64__ 1
#define _LP64 1
#define __amd64__ 1
#define __linux__ 1
#define __linux 1
#define linux 1
#define __unix__ 1
#define __STDC__ 1
#define __STDC_VERSION__ 201112L
#define __CHAR_BIT__ 8
#define __SIZEOF_POINTER__ 8
#define __BYTE_ORDER__ 1234
#define __ORDER_LITTLE_ENDIAN__ 1234
#define NV_UNIX 1
#define NV_LINUX 1
`

const integers = `#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t; typedef unsigned long uint64_t;
typedef long intptr_t; typedef unsigned long uintptr_t; typedef long intmax_t; typedef unsigned long uintmax_t;
#define UINT32_MAX 0xffffffffU
#define UINT64_MAX 0xffffffffffffffffUL
#define UINT16_MAX 0xffff
#define UINT8_MAX 0xff
#define INT32_MAX 0x7fffffff
`

const ioctlMacros = `
#define _IOC(d,t,n,s) (((d)<<30)|((t)<<8)|((n)<<0)|((s)<<16))
#define _IO(t,n) _IOC(0U,(t),(n),0)
#define _IOR(t,n,s) _IOC(2U,(t),(n),sizeof(s))
#define _IOW(t,n,s) _IOC(1U,(t),(n),sizeof(s))
#define _IOWR(t,n,s) _IOC(3U,(t),(n),sizeof(s))
`

const linuxTypes = `#include <stdint.h>
#include <stddef.h>
#pragma once
typedef unsigned char __u8; typedef unsigned short __u16; typedef unsigned int __u32; typedef unsigned long long __u64;
typedef int __s32; typedef long long __s64;
`

const drmHeader = `#include <linux/types.h>
#include <linux/ioctl.h>
#pragma once
#define DRM_IOCTL_BASE 'd'
#define DRM_COMMAND_BASE 0x40
#define DRM_IO(n) _IO(DRM_IOCTL_BASE,n)
#define DRM_IOR(n,t) _IOR(DRM_IOCTL_BASE,n,t)
#define DRM_IOW(n,t) _IOW(DRM_IOCTL_BASE,n,t)
#define DRM_IOWR(n,t) _IOWR(DRM_IOCTL_BASE,n,t)
`

// stubs stand in for system headers; no header of the driver is replaced.
var stubs = map[string]string{
	"stdint.h": integers, "sys/stdint.h": integers, "inttypes.h": "#include <stdint.h>\n",
	"stddef.h":       "#pragma once\ntypedef unsigned long size_t; typedef long ptrdiff_t; typedef int wchar_t;\n",
	"linux/stddef.h": "#include <stddef.h>\n",
	"stdbool.h":      "#define bool _Bool\n",
	"stdarg.h":       "#pragma once\ntypedef __builtin_va_list va_list;\n",
	"linux/stdarg.h": "#include <stdarg.h>\n",
	"linux/types.h":  linuxTypes,
	"linux/ioctl.h":  "#pragma once\n" + ioctlMacros, "asm/ioctl.h": "#include <linux/ioctl.h>\n", "sys/ioctl.h": "#include <linux/ioctl.h>\n",
	"drm/drm.h": drmHeader,
	"string.h":  "\n", "stdlib.h": "\n", "stdio.h": "\n", "limits.h": "\n", "linux/string.h": "\n", "linux/kernel.h": "\n",
}

// Where things lie in the driver's tree.
const (
	sdk     = "src/common/sdk/nvidia/inc"
	arch    = "src/nvidia/arch/nvalloc/unix/include"
	openInc = "kernel-open/common/inc"
)

// roots are the folders and files of the driver that the harvest reads.
func roots() []string {
	return []string{
		"version.mk", "src/common", "src/nvidia/arch/nvalloc/unix", "src/nvidia/generated", "src/nvidia/inc", "src/nvidia/interface",
		"src/nvidia/src/kernel/rmapi", "src/nvidia-modeset/interface", "src/nvidia-modeset/src/nvkms.c",
		"kernel-open/common/inc", "kernel-open/nvidia", "kernel-open/nvidia-uvm", "kernel-open/nvidia-modeset", "kernel-open/nvidia-drm",
	}
}

// unit is a set of headers that are read as one translation unit.
type unit struct {
	name    string
	dirs    []string
	headers []string
	defines string

	pre *cpp.Preprocessor
	par *cdecl.Unit
}

func has(fsys fs.FS, name string) bool {
	_, err := fs.Stat(fsys, name)
	return err == nil
}

func unitsOf(fsys fs.FS) []unit {
	present := func(l ...string) []string {
		return slices.DeleteFunc(l, func(s string) bool { return !has(fsys, s) })
	}
	return []unit{
		{
			name:    "rm",
			dirs:    []string{sdk, arch, sdk + "/class", sdk + "/ctrl", "src/nvidia/inc/libraries", "src/common/shared/inc", "src/common/inc", "src/nvidia/generated", openInc},
			headers: rmHeaders(fsys),
		},
		{
			name:    "uvm",
			dirs:    []string{openInc, "kernel-open/nvidia-uvm", sdk},
			headers: present("kernel-open/nvidia-uvm/uvm_linux_ioctl.h", "kernel-open/nvidia-uvm/uvm_test_ioctl.h"),
		},
		{
			name:    "kms",
			dirs:    []string{"src/nvidia-modeset/interface", "src/common/unix/common/inc", "src/common/inc", "src/common/shared/inc", sdk, openInc, "src/common/modeset", "src/common/modeset/timing"},
			headers: present("kernel-open/nvidia-modeset/nvkms-ioctl.h", "src/nvidia-modeset/interface/nvkms-api.h"),
		},
		{
			name:    "nvswitch",
			dirs:    []string{"src/common/nvswitch/interface", "kernel-open/nvidia", openInc, sdk},
			headers: present(sdk+"/nvtypes.h", "kernel-open/nvidia/ioctl_nvswitch.h", "src/common/nvswitch/interface/ctrl_dev_nvswitch.h"),
			defines: ioctlMacros,
		},
		{
			name:    "nvlink",
			dirs:    []string{"src/common/nvlink/interface", "kernel-open/nvidia", sdk, openInc, "src/common/inc"},
			headers: present("src/common/nvlink/interface/nvlink_lib_ctrl.h"),
			defines: ioctlMacros,
		},
		{
			name:    "drm",
			dirs:    []string{"kernel-open/nvidia-drm", openInc},
			headers: present("kernel-open/nvidia-drm/nvidia-drm-ioctl.h", "kernel-open/nvidia-drm/nv_drm_common_ioctl.h"),
		},
	}
}

// rmHeaders lists the resource manager's public headers. Some moved between the
// folders of the two halves of the driver.
func rmHeaders(fsys fs.FS) []string {
	var l []string
	add := func(name string) {
		if has(fsys, name) {
			l = append(l, name)
		}
	}
	for _, f := range []string{"nvtypes.h", "nvmisc.h", "nvlimits.h", "nvstatus.h", "nvos.h", "nverror.h", "rs_access.h"} {
		add(path.Join(sdk, f))
	}
	for _, f := range []string{
		"nv_escape.h", "nv-ioctl-numbers.h", "nv-ioctl.h", "nv-ioctl-numa.h", "nv-ioctl-nvlog.h",
		"nv-ioctl-lockless-diag.h", "nv-unix-nvos-params-wrappers.h", "nv-chardev-numbers.h",
	} {
		if has(fsys, path.Join(arch, f)) {
			add(path.Join(arch, f))
		} else {
			add(path.Join(openInc, f))
		}
	}
	for _, d := range []string{"alloc", "ctrl", "class"} {
		l = append(l, headersIn(fsys, path.Join(sdk, d))...)
	}
	add(path.Join(sdk, "g_finn_rm_api.h"))
	add("src/nvidia/generated/g_allclasses.h")
	return l
}

func headersIn(fsys fs.FS, dir string) []string {
	var l []string
	_ = fs.WalkDir(fsys, dir, func(p string, e fs.DirEntry, err error) error { // a folder that is not there has none
		if err == nil && !e.IsDir() && strings.HasSuffix(p, ".h") {
			l = append(l, p)
		}
		return nil
	})
	slices.Sort(l)
	return l
}

// load reads a unit and puts its types into the facts.
func (h *harvest) load(u *unit) {
	if len(u.headers) == 0 {
		h.fail("%s: none of its headers is there", u.name)
	}
	u.pre = cpp.NewPreprocessor(h.fsys, u.dirs, stubs, predefined+u.defines)
	for _, name := range u.headers {
		if err := u.pre.Read(name); err != nil {
			h.fail("%s: %w", u.name, err)
		}
	}
	u.par = cdecl.Parse(u.pre.Out, nil)
	for _, err := range append(u.pre.Errors(), u.par.Errors...) {
		h.fail("%s: %w", u.name, err)
	}
	for _, name := range u.pre.Missing {
		h.fail("%s: header %s is not there", u.name, name)
	}
	kept := *u
	h.units[u.name] = &kept
	h.types(&kept)
}

// value evaluates an object-like macro to a number.
func (u *unit) value(name string) (uint64, bool) {
	m := u.pre.All[name]
	if m == nil || m.Func || len(m.Body) == 0 {
		return 0, false
	}
	v, err := u.par.Eval(u.pre.Expand(m.Body))
	return v.Bits(), err == nil
}

// bits reads a macro that names a range of bits, hi:lo.
func (u *unit) bits(name string) (hi, lo int64, ok bool) {
	m := u.pre.All[name]
	if m == nil || m.Func || len(m.Body) < 3 {
		return 0, 0, false
	}
	t := unwrap(u.pre.Expand(m.Body))
	depth, at := 0, -1
	for i, x := range t {
		switch x.Text {
		case "(":
			depth++
		case ")":
			depth--
		case "?":
			return 0, 0, false
		case ":":
			if depth == 0 && at >= 0 {
				return 0, 0, false
			}
			if depth == 0 {
				at = i
			}
		}
	}
	if at <= 0 {
		return 0, 0, false
	}
	a, err1 := u.par.Eval(t[:at])
	b, err2 := u.par.Eval(t[at+1:])
	return a.Int, b.Int, err1 == nil && err2 == nil
}

// unwrap takes off parentheses around all of an expression.
func unwrap(t []ctoken.Token) []ctoken.Token {
	for len(t) >= 2 && t[0].Text == "(" && t[len(t)-1].Text == ")" {
		depth := 0
		for i, x := range t {
			switch x.Text {
			case "(":
				depth++
			case ")":
				depth--
			}
			if depth == 0 && i != len(t)-1 {
				return t
			}
		}
		t = t[1 : len(t)-1]
	}
	return t
}
