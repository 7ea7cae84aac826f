package need

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals has the programs that tests start from now on take the signals of a terminal as
// they come by default, also where this process ignores them, as under nohup or in a
// script's background: a program inherits what is ignored, but no handler.
func Signals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}
