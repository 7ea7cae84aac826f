module example.org/user

go 1.26.0

require nvtrace v0.0.0

replace nvtrace => ../../../..
