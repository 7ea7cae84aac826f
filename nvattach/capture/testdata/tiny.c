// A driver that needs no relocations, for programs that load it themselves.
int cuModuleLoadData(void **m, const void *image) {
	*m = (void *)image;
	return 0;
}
