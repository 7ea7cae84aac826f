"""A training with a planted leak: leak.py [STEPS] [--fixed]

It keeps each step's loss with its graph, and with that all activations: PyTorch's own memory
figures grow, and so do the blocks that its allocator asks the driver for. --fixed keeps numbers.
What it prints is the same in every run."""
import argparse
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

ap = argparse.ArgumentParser()
ap.add_argument("steps", nargs="?", type=int, default=200)
ap.add_argument("--fixed", action="store_true")
ap.add_argument("--pause", type=float, default=0.05, help="seconds between steps")
args = ap.parse_args()

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(2048, 1024, device="cuda")
history = []


side = torch.cuda.Stream()  # whose blocks the allocator keeps apart from those of the training


def evaluate():
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        check = (model(x) - x).square().mean()
    torch.cuda.current_stream().wait_stream(side)
    return check


for step in range(args.steps):
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    check = evaluate()
    history.append(check.item() if args.fixed else check)  # the leak: its graph has all activations
    time.sleep(args.pause)
print(f"{args.steps} steps, loss {float(history[-1]):.6f}")
