package rm

import "iter"

// ABI is the tables of one driver version. It is immutable and may be used from
// several goroutines, as everything that it returns.
type ABI struct {
	asked Version
}

// Version returns the version whose tables these are.
func (a *ABI) Version() Version { return a.asked }

// Asked returns the version that [Load] was asked for.
func (a *ABI) Asked() Version { return a.asked }

// Exact reports whether the tables are those of the version asked for; false
// means the nearest older known one (the oldest, if none is older).
func (a *ABI) Exact() bool { return false }

// Versions returns all versions in the data, in ascending order.
func Versions() []Version { return nil }

// Load returns the tables of version v, of the nearest older version if v is
// not in the data, or of the newest if v is zero.
func Load(v Version) *ABI { return &ABI{asked: v} }

// Newest returns the tables of the newest version in the data.
func Newest() *ABI { return Load(Version{}) }

// Escape returns the escape (request on nvidiactl and nvidiaN) of that number
// (_IOC_NR of the request), nil if the version has none.
func (a *ABI) Escape(nr uint32) *Escape { return nil }

// Control returns the control command of that number, nil if it is unknown.
// [ABI.ControlGroup] says something about unknown ones.
func (a *ABI) Control(cmd uint32) *Control { return nil }

// ControlGroup describes an unknown control command by its class and category:
// "NV2080 PERF_LEGACY_NON_PRIVILEGED #0x83".
func (a *ABI) ControlGroup(cmd uint32) string { return "" }

// ControlLayout returns the control command whose parameters have the given
// size: the version's own if it fits, else that of the nearest version where it
// does (with that version), else nil. It serves drivers newer than the data,
// and traces whose version is not known.
func (a *ABI) ControlLayout(cmd uint32, paramsSize int) (*Control, Version) { return nil, Version{} }

// Class returns the object class of that number, nil if it is unknown.
func (a *ABI) Class(id uint32) *Class { return nil }

// UVM returns the request of nvidia-uvm of that number, test requests included.
func (a *ABI) UVM(nr uint32) *Request { return nil }

// Modeset returns the request of nvidia-modeset (NvKmsIoctlParams.cmd).
func (a *ABI) Modeset(nr uint32) *Request { return nil }

// NVSwitch returns the request of an nvidia-nvswitchN node (_IOC_NR).
func (a *ABI) NVSwitch(nr uint32) *Request { return nil }

// NVSwitchCtl returns the request of nvidia-nvswitchctl, by its whole ioctl number.
func (a *ABI) NVSwitchCtl(nr uint32) *Request { return nil }

// NVLink returns the request of nvidia-nvlink (_IOC_NR).
func (a *ABI) NVLink(nr uint32) *Request { return nil }

// DRM returns the request of nvidia-drm (a /dev/dri node), by its whole ioctl number.
func (a *ABI) DRM(nr uint32) *Request { return nil }

// Struct returns the layout of that name (typedef names resolve), nil if the
// version has none that crosses the border.
func (a *ABI) Struct(name string) *Struct { return nil }

// Escapes, Controls, Classes, UVMs, Modesets, NVSwitches, NVSwitchCtls, NVLinks,
// DRMs and Structs iterate over everything the version has, in ascending order
// of number or name.
func (a *ABI) Escapes() iter.Seq[*Escape] { return func(func(*Escape) bool) {} }

// Controls iterates in ascending order of command.
func (a *ABI) Controls() iter.Seq[*Control] { return func(func(*Control) bool) {} }

// Classes iterates in ascending order of class number.
func (a *ABI) Classes() iter.Seq[*Class] { return func(func(*Class) bool) {} }

// UVMs iterates in ascending order of request, test requests included.
func (a *ABI) UVMs() iter.Seq[*Request] { return func(func(*Request) bool) {} }

// Modesets iterates in ascending order of command.
func (a *ABI) Modesets() iter.Seq[*Request] { return func(func(*Request) bool) {} }

// NVSwitches iterates in ascending order of request.
func (a *ABI) NVSwitches() iter.Seq[*Request] { return func(func(*Request) bool) {} }

// NVSwitchCtls iterates in ascending order of request.
func (a *ABI) NVSwitchCtls() iter.Seq[*Request] { return func(func(*Request) bool) {} }

// NVLinks iterates in ascending order of request.
func (a *ABI) NVLinks() iter.Seq[*Request] { return func(func(*Request) bool) {} }

// DRMs iterates in ascending order of request.
func (a *ABI) DRMs() iter.Seq[*Request] { return func(func(*Request) bool) {} }

// Structs iterates over all layouts, in ascending order of name.
func (a *ABI) Structs() iter.Seq[*Struct] { return func(func(*Struct) bool) {} }
