#include "test.h"

__managed__ int total;
__managed__ int table[16] = {5, 4, 3};

struct List {
	int value;
	List *next;
};

__global__ void sum(const List *l)
{
	for (; l; l = l->next)
		total += l->value + table[1];
}

int main()
{
	List *l = nullptr;
	total = 100;
	table[1] += 1;
	for (int i = 1; i <= 20; i++) {
		List *n;
		CHECK(cudaMallocManaged(&n, sizeof *n));
		n->value = i;
		n->next = l;
		l = n;
	}
	sum<<<1, 1>>>(l);
	CHECK(cudaDeviceSynchronize());
	EXPECT(total == 100 + 210 + 20 * 5);
	EXPECT(table[0] == 5 && table[2] == 3);
	cudaPointerAttributes a;
	CHECK(cudaPointerGetAttributes(&a, l));
	EXPECT(a.type == cudaMemoryTypeManaged && a.devicePointer == l);
	while (l) {
		List *n = l->next;
		CHECK(cudaFree(l));
		l = n;
	}
	return passed();
}
