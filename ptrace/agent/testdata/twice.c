long twice(long x)
{
	__asm__ volatile("");
	return 2 * x;
}
