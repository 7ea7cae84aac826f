package record

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// maxRights is of how many programs it is told that they lack rights.
const maxRights = 100

// checkRights notes a program that gets rights from its file when it is executed, but
// not under a tracer without privileges (ptrace(2)). Each file is told of once.
func (r *Recorder) checkRights(t *ptrace.Task, path string) {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 || r.lacking[path] || len(r.lacking) >= maxRights {
		return
	}
	what := rights(proc.Path(t.PID, "exe"), uid, gid)
	if what == "" {
		return
	}
	if v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && v != 0 {
		return // it has none without us, too
	}
	if r.lacking == nil {
		r.lacking = make(map[string]bool)
	}
	r.lacking[path] = true
	text := fmt.Sprintf("process %d executes %s, which is %s%s", t.PID, path, what, withoutRights)
	r.Note(t, text)
	if r.opts.Say != nil { // it may be why the program fails, so it is not left to the summary
		r.opts.Say(text)
	}
}

// withoutRights is how a note of checkRights ends.
const withoutRights = ": under a tracer without privileges it runs without these rights; if it needs them, run nvtrace as root"

// Said reports whether a note is one that [Options.Say] was told, too.
func Said(note string) bool { return strings.HasSuffix(note, withoutRights) }

// rights says by what a program's file gives rights to a user who has neither; "": it
// gives none.
func rights(exe string, uid, gid int) string {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Stat(exe, &st) != nil || unix.Statfs(exe, &fs) == nil && fs.Flags&unix.ST_NOSUID != 0 {
		return ""
	}
	switch {
	case st.Mode&unix.S_ISUID != 0 && int(st.Uid) != uid:
		return "setuid"
	case st.Mode&unix.S_ISGID != 0 && st.Mode&unix.S_IXGRP != 0 && int(st.Gid) != gid:
		return "setgid"
	}
	if n, err := unix.Getxattr(exe, "security.capability", nil); err == nil && n > 0 {
		return "given capabilities by its file"
	}
	return ""
}
