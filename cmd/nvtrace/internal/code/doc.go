// Package code reads GPU code in files: the verbs fatbin, sass and ptx.
package code
