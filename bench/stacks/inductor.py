"""An MLP with layer norm under torch.compile, forward and backward; prints digests."""
import hashlib

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512)

    def forward(self, x):
        return torch.softmax(self.norm(x + self.b(torch.nn.functional.gelu(self.a(x)))), dim=-1)


def digest(t):
    return hashlib.sha256(t.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


torch.manual_seed(0)
net = Net().cuda()
run = torch.compile(net)
x = torch.randn(1024, 512, device="cuda", requires_grad=True)
for _ in range(5):
    net.zero_grad()
    y = run(x)
    (y * y).sum().backward()
torch.cuda.synchronize()
print("out", digest(y))
print("grad", digest(net.a.weight.grad))
