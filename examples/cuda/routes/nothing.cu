// The kernel that the programs beside this file launch.
extern "C" __global__ void nothing() {}
