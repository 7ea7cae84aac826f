module nvtrace

go 1.26.0
