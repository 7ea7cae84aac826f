"""A matrix product with PyTorch, checked against the CPU."""
import torch

a = torch.arange(256 * 256, dtype=torch.float32).reshape(256, 256) % 7
b = torch.arange(256 * 256, dtype=torch.float32).reshape(256, 256) % 5
c = (a.cuda() @ b.cuda()).cpu()
assert torch.equal(c, a @ b), "wrong product"
print("matmul: ok", int(c.sum()))
