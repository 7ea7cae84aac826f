// Package verbs is the command line of nvtrace: its words, what each of them runs, help, the manual page.
package verbs
