"""A training with a planted synchronisation: sync.py [STEPS] [--fixed]

It asks for the gradients' norm of each parameter by .item(), so that the host waits for the GPU
many times a step, and the GPU for the host after each. --fixed adds them up on the GPU. What it
prints is the same in every run; the time of a step goes to stderr."""
import argparse
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

ap = argparse.ArgumentParser()
ap.add_argument("steps", nargs="?", type=int, default=100)
ap.add_argument("--fixed", action="store_true")
args = ap.parse_args()

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = torch.nn.Sequential(*[m for _ in range(16) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, 512, device="cuda")


def norm():
    if args.fixed:
        return sum(p.grad.square().sum() for p in model.parameters())
    return sum(p.grad.square().sum().item() for p in model.parameters())  # waits 32 times


begin = time.perf_counter()
for step in range(args.steps):
    loss = (model(x) - x).square().mean()
    loss.backward()
    total = norm()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(f"step_ms {1e3 * (time.perf_counter() - begin) / args.steps:.3f}", file=sys.stderr)
print(f"{args.steps} steps, norm {float(total) ** 0.5:.5f}, loss {loss.item():.6f}")
