// Package run traces programs: the verbs run, stat, top, tool, attach, dump, replay, the process that decodes what
// happens, and what a run writes.
package run
