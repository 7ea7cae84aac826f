"""Answers prompts by a small GPT-2 in a thread and prints the tokens: serve.py [REQUESTS] [--stamps FILE] [--until FILE]

Each request is 16 tokens chosen greedily, with the keys and values of those before kept.
--stamps and --until are those of train.py, for requests instead of steps."""
import argparse
import os
import queue
import threading
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from transformers import GPT2Config, GPT2LMHeadModel

ap = argparse.ArgumentParser()
ap.add_argument("steps", nargs="?", type=int, default=20)
ap.add_argument("--stamps", metavar="FILE")
ap.add_argument("--until", metavar="FILE")
ap.add_argument("--attention", default="flash", help="ignored, as train.py has it")
args = ap.parse_args()

torch.use_deterministic_algorithms(True, warn_only=True)
torch.manual_seed(0)
config = GPT2Config(n_layer=4, n_head=8, n_embd=512, vocab_size=8192, n_positions=512, attn_implementation="eager")
model = GPT2LMHeadModel(config).cuda().bfloat16().eval()
asked, answered = queue.Queue(), queue.Queue()


@torch.no_grad()
def serve():
    while (prompt := asked.get()) is not None:
        tokens, kept, out = torch.tensor([prompt], device="cuda"), None, []
        for _ in range(16):
            got = model(input_ids=tokens, past_key_values=kept, use_cache=True)
            kept = got.past_key_values
            tokens = got.logits[:, -1:].argmax(-1)
            out.append(tokens.item())
        answered.put(out)


server = threading.Thread(target=serve)
server.start()
stamps = open(args.stamps, "w") if args.stamps else None
for step in range(args.steps):
    begin = time.monotonic()
    asked.put([(step * 31 + i * 7) % 8192 for i in range(64)])
    out = answered.get()
    took = time.monotonic() - begin
    print(f"request {step} answer {out}", flush=bool(args.until))
    if stamps:
        print(begin, took, file=stamps, flush=True)
    if args.until and os.path.exists(args.until):
        break
asked.put(None)
server.join()
