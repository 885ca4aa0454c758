"""One real GPU failure each, by name, after three steps."""

import sys

import torch
import torch.distributed as dist

kind = sys.argv[1]
device = torch.device("cuda", 0)
if kind == "duplicate":  # two ranks on one card, over NCCL
    dist.init_process_group("nccl")
weight = torch.randn(512, 512, device=device, requires_grad=True)
for step in range(1, 4):
    loss = (weight @ weight).square().mean()
    loss.backward()
    print(f"step {step}/100 loss {loss.item():.4f}", flush=True)
if kind == "duplicate":
    dist.all_reduce(torch.ones(1, device=device))
elif kind == "assert":  # a label beyond the classes
    logits = torch.randn(8, 10, device=device)
    loss = torch.nn.functional.cross_entropy(logits, torch.full((8,), 1001, device=device))
    print(loss.item())
elif kind == "illegal":
    import triton
    import triton.language as tl

    @triton.jit
    def beyond(pointer, block: tl.constexpr):
        tl.store(pointer + 1_000_000_000_000 + tl.arange(0, block), 1.0)

    beyond[(1,)](weight.detach(), block=128)
    torch.cuda.synchronize()
elif kind == "leak":  # a held graph grows until the card is full
    kept = []
    while True:
        kept.append(torch.empty(1 << 30, device=device))
elif kind == "ordinal":
    torch.zeros(1, device="cuda:7")
elif kind == "stuck":  # a kernel that never ends, as a collective without its peer
    while True:
        torch.cuda._sleep(1 << 40)
        torch.cuda.synchronize()
