// Package object knows probe objects: eBPF programs and maps as clang makes them or as somebody
// puts them together, at which sites of kernels and places on the host their sections have them run
// ([Point], [HostPoint]), what users set in them ([Setting]), and the calls that are known
// before a program is proven ([Object.Expand]). A map is a definition here ([MapDef]); package
// mapmem gives it memory.
package object
