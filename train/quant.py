"""Fake quantisation of all matrices at once: the pack's rule over one flat list of groups, gradients straight through."""

from __future__ import annotations

from typing import Any

import torch

from model import Params, fake_quant, is_matrix


class _Through(torch.autograd.Function):
    """Forward gives the quantised value, backward hands the gradient to the full-precision weight."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.float(), None


def quantised(params: Params, dtype: torch.dtype) -> Params:
    """Weights for the forward pass, every matrix through 4 bits."""
    names = [n for n, w in params.items() if is_matrix(n, tuple(w.shape)) and not n.startswith("selector_")]
    with torch.no_grad():
        flat = torch.cat([params[n].reshape(-1, 64) for n in names])
        values = fake_quant(flat).to(dtype).split([params[n].numel() // 64 for n in names])
    out = dict(params)
    for name, value in zip(names, values):
        out[name] = _Through.apply(params[name], value)
    return out
