"""Muon for the matrices (momentum, then the nearest orthogonal matrix by Newton-Schulz), AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict

import torch


def orthogonalise(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """g [n, r, c] -> about U V^T of each matrix, in bf16 (the quintic Newton-Schulz iteration)."""
    x = g.bfloat16()
    wide = x.shape[1] > x.shape[2]
    if wide:
        x = x.transpose(1, 2)
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(steps):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(1, 2) if wide else x


class Muon:
    """Parameters of one shape are stepped as one batch; an update has an RMS of 0.2 lr per element whatever the shape."""

    def __init__(self, params: list[torch.Tensor], momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        groups: dict[tuple[int, ...], list[torch.Tensor]] = defaultdict(list)
        for p in params:
            groups[tuple(p.shape)].append(p)
        self.groups = list(groups.values())
        self.momentum, self.weight_decay = momentum, weight_decay
        self.buffers = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for group, buffer in zip(self.groups, self.buffers):
            grad = torch.stack([p.grad for p in group])
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonalise(grad.lerp(buffer, self.momentum)).float()
            scale = 0.2 * max(group[0].shape) ** 0.5
            torch._foreach_mul_(group, 1 - lr * self.weight_decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-lr * scale)


class Optimiser:
    """Muon and AdamW with one schedule: warm-up, flat, then linear to zero (`progress` runs from 0 to 1)."""

    def __init__(self, params: dict[str, torch.Tensor], muon_lr: float, adam_lr: float, embed_lr: float, decay_from: float = 0.55, warmup: float = 0.015) -> None:
        by_muon = [p for n, p in params.items() if p.ndim == 2 and min(p.shape) >= 32 and "embed" not in n and not n.startswith("selector_")]
        taken = {id(p) for p in by_muon}
        embed = [p for n, p in params.items() if "embed" in n or n.startswith("selector_")]
        taken |= {id(p) for p in embed}
        rest = [p for p in params.values() if id(p) not in taken]
        self.all = list(params.values())
        self.muon, self.muon_lr = Muon(by_muon), muon_lr
        groups = [{"params": rest, "peak": adam_lr}] + ([{"params": embed, "peak": embed_lr}] if embed else [])
        self.adam = torch.optim.AdamW(groups, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=self.all[0].is_cuda)
        self.decay_from, self.warmup = decay_from, warmup

    def factor(self, progress: float) -> float:
        return min(1.0, (progress + 1e-3) / self.warmup, max(0.0, (1 - progress) / (1 - self.decay_from)))

    def step(self, progress: float, clip: float = 1.0) -> torch.Tensor:
        norm = torch.nn.utils.clip_grad_norm_(self.all, clip, foreach=True)
        factor = self.factor(progress)
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * factor
        self.adam.step()
        self.muon.step(self.muon_lr * factor)
        torch._foreach_zero_([p.grad for p in self.all])
        return norm
