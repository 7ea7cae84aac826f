// Package objects draws the objects that a recording has the driver make, and what memory of theirs is mapped: the
// verbs tree and maps.
package objects
