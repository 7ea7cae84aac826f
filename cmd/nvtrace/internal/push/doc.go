// Package push sends what was measured to receivers that others run: an OpenTelemetry collector (OTLP over gRPC and HTTP),
// Pyroscope and Parca (profiles in pprof's form).
//
// Who measures never waits: what is to be sent is put into a queue of bounded size, which a goroutine empties. What finds no
// room there, or is refused, is counted and said at the end.
//
// It refuses to know what is measured.
package push
