// Package wire describes the binary form of the driver tables, for the
// generator that writes it and for package rm, which embeds and reads it.
//
// The file is little endian:
//
//	magic                8 bytes
//	directory            one u32 file offset for each section, then one for the end
//	section Strings      u32 n, n+1 u32 offsets from the end of this array, the bytes
//	section Versions     u32 n, n times four u16: major, minor, patch, 1 if spelled without patch
//	record sections      u32 n, n+1 u32 offsets from the end of this array, the records
//	table sections       u32 n, n u32 keys, n+1 u32 step indexes, the steps: u16 version, u16 record
//
// A record is a sequence of unsigned varints; strings are numbers of the string
// section, references to other records are record number plus one, 0 for none.
// Records hold nothing of the version: equal facts of several versions are one
// record. A table says, for each key in ascending order, from which version on
// (as an index into the version section) which record (plus one; 0: none)
// holds. Keys are numbers, or, in the Structs table, strings in ascending order.
package wire

// Magic starts the file.
const Magic = "nvrm\x00\x01\r\n"

// The sections, in the order of the directory.
const (
	Strings = iota
	Versions

	DomainRecs
	StructRecs
	ControlRecs
	ClassRecs
	EscapeRecs
	RequestRecs
	StatusRecs

	StructTab
	ControlTab
	CategoryTab // key: class<<8 | category
	ClassTab
	EscapeTab
	UVMTab
	KMSTab
	NVSwitchTab
	NVSwitchCtlTab
	NVLinkTab
	DRMTab
	StatusTab

	Sections // how many there are
)

// Bits of the first number of a field, above the kind.
const (
	FieldKind = 7 // mask
	FieldDims = 1 << (iota + 2)
	FieldBits
	FieldRole
	FieldCount
	FieldDomain
	FieldDir
	FieldElem // the element's size is given, because the dimensions do not tell it
)

// The kinds of field, the values of FieldKind.
const (
	Uint = iota
	Int
	Float
	Pointer
	Enum
	Record
)

// Bits of a control record's first number.
const (
	ControlExported = 1 << iota
	ControlParams
	ControlEmbedded
	ControlOther
)

// Bits of a class record's first number.
const (
	ClassMulti = 1 << iota
	ClassListed
	ClassAnyParent
)

// Bits of a request record's first number.
const (
	RequestLive = 1 << iota
	RequestTest
)

// The targets of an embedded pointer.
const (
	TargetArray = iota
	TargetControl
	TargetAlloc
	TargetEscape
)
