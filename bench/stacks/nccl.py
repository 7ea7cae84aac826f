"""Collectives of NCCL on two GPUs, a process each, and steps of a training on both; prints digests: nccl.py [ELEMENTS ...]"""
import hashlib
import os
import sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def digest(t):
    return hashlib.sha256(t.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def work(rank, ranks, port, sizes, told):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    lines = []
    for n in sizes:
        t = torch.arange(n, device="cuda", dtype=torch.int64) * (rank + 1)
        dist.all_reduce(t)
        lines.append(f"all_reduce of {n}: {'right' if int(t.sum()) == 3 * n * (n - 1) // 2 else 'WRONG'}")
        parts = [torch.empty_like(t) for _ in range(ranks)]
        dist.all_gather(parts, t + rank)
        lines.append(f"all_gather of {n}: {[int(p[-1]) - int(t[-1]) for p in parts]}")
        half = torch.empty(n // ranks, device="cuda", dtype=torch.int64)
        dist.reduce_scatter_tensor(half, t)
        lines.append(f"reduce_scatter of {n}: {digest(half)}")
        dist.broadcast(t, 1)
        lines.append(f"broadcast of {n}: {digest(t)}")
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64)).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        x = torch.arange(64 * 512, device="cuda", dtype=torch.float32).reshape(64, 512).sin() * (rank + 1)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        lines.append(f"step {step} loss {loss.item():.9f}")
    dist.destroy_process_group()
    told.put((rank, lines))


if __name__ == "__main__":
    ranks = min(torch.cuda.device_count(), 2)
    if ranks < 2:
        sys.exit("it needs two GPUs")
    mp.set_start_method("spawn")
    told = mp.SimpleQueue()
    sizes = [int(n) for n in sys.argv[1:]] or [1000, 1 << 20, 16 << 20]
    procs = [mp.Process(target=work, args=(r, ranks, 20000 + os.getpid() % 20000, sizes, told)) for r in range(ranks)]
    for p in procs:
        p.start()
    all = sorted(told.get() for _ in procs)
    for p in procs:
        p.join()
    for rank, lines in all:
        for line in lines:
            print(f"rank {rank}: {line}")
    sys.exit(max(abs(p.exitcode) for p in procs))
