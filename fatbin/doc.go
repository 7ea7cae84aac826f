// Package fatbin reads and writes what CUDA's tools put code for the GPU in:
// fat binary containers, the entries in them (PTX, cubins, LTO-IR), their
// compression, cubins themselves, and the host ELF files and archives that
// carry containers.
//
// A [File] is one file of any of these formats. Its [File.Containers] walks the
// containers without decompressing anything, so that listing costs only the
// pages that headers are on. [Entry.Data] or an [Inflater] gives an entry's
// content, [ParseCubin] the kernels in a cubin with their parameters and
// resources.
//
// Containers can be edited: [Container.Entries] is an ordinary slice, [NewEntry]
// makes entries, and [Container.Append] writes the container. What was not
// changed is written as it was read, byte for byte; unknown kinds, flags and
// attributes are kept as values. A [CubinEditor] changes the code of kernels in a
// cubin.
//
// The package knows nothing of the machine code in cubins, of PTX beyond the
// names of its entries, and of who loads an image. Input is not trusted: every
// length is checked before it is used, and memory is bounded by the input's size
// and [Options.MaxEntry].
//
// NVIDIA publishes no description of these formats, other than
// fatbinary_section.h for the wrapper. The layouts here were measured on
// containers and cubins that the tools of CUDA 11.8 to 13.5 wrote.
//
// # Stability
//
// Programs may import this package. Before version 1.0 names may still change; the changelog says
// which.
package fatbin
