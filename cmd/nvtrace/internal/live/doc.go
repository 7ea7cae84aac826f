// Package live looks at processes that run, from outside: the verbs ps, where, sample, pushbuffer, doctor, the tables
// of top.
package live
