// Package probe knows what can be probed: it loads programs for probes, lists where they may run, and says what they
// would change without running anything.
package probe
