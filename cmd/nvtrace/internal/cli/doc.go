// Package cli is what all verbs share: flags, messages, exit statuses, the files that are written, tables, and how
// recordings are opened.
package cli
