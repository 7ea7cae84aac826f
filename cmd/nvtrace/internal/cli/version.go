package cli

import (
	"runtime/debug"
)

// Version is what the Go tool wrote into the binary: the tag of the commit, or a version
// made of its date and hash; "(devel)" where it was built outside of a repository.
var Version = buildVersion()

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
