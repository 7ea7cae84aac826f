package agent

//go:generate go run ./internal/gen
