"""The training forward, the generator and the fake quantisation against golden files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import generate as G
import model as M


@pytest.fixture(scope="module")
def dense(fixtures: Path) -> tuple[M.Config, M.Params, dict[str, torch.Tensor]]:
    folder = fixtures / "dense"
    return M.Config.from_hf(folder), {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}, load_file(folder / "expected.safetensors")


def padded(ids: torch.Tensor) -> torch.Tensor:
    return F.pad(ids, (0, -ids.shape[1] % M.CHUNK))


def test_logits_equal_transformers(dense: tuple) -> None:
    c, w, expected = dense
    ids = expected["ids"].long()[None]
    h, _ = M.forward(padded(ids), w, c, eot=-1)
    assert (h[0, :ids.shape[1]] @ M.head(w).T - expected["logits"]).abs().max() < 1e-3


def test_packed_documents_do_not_see_each_other(dense: tuple) -> None:
    c, w, expected = dense
    eot = 5
    ids = expected["ids"].long()[None].clone()
    ids[ids == eot] = 6
    first, second = ids[:, :40], ids[:, 40:]
    packed, _ = M.forward(padded(torch.cat([first, torch.tensor([[eot]]), second], 1)), w, c, eot)
    alone, _ = M.forward(padded(second), w, c, eot=-1)
    assert (packed[0, 41:41 + second.shape[1]] - alone[0, :second.shape[1]]).abs().max() < 1e-4


def test_stepwise_generation_equals_forward(dense: tuple) -> None:
    c, w, _ = dense
    script = torch.randint(10, 1000, (2, 64), generator=torch.Generator().manual_seed(0))
    script[0, 20], script[1, 10] = 7, G.GEN
    out = G.Text.empty(2, 64, 2, c.hidden_size, torch.device("cpu"), torch.float32)
    G.play(script, torch.zeros(2), out, w, c, (0, 2), eot=7, end=9, limit=12)
    h, kept = M.forward(out.ids, w, c, 7, taps=(0, 2))
    assert (h - out.hidden).abs().max() < 1e-3 and (torch.cat(kept, -1) - out.features).abs().max() < 1e-3
    best = (h @ M.head(w).T).argmax(-1)
    own = out.own[1].nonzero()[:, 0].tolist()
    assert own and all(best[1, t - 1] == out.ids[1, t] for t in own[:-1])  # the last may be an end by force


def test_fake_quantisation_is_the_packs_rule(fixtures: Path) -> None:
    source, packed = load_file(fixtures / "dense" / "model.safetensors"), load_file(fixtures / "dense-mlx4" / "model.safetensors")
    compared = 0
    for name, w in source.items():
        base = "language_model." + name.removesuffix(".weight")
        if base + ".scales" not in packed:
            continue
        words = packed[base + ".weight"].to(torch.int64) & 0xFFFFFFFF
        codes = torch.stack([(words >> 4 * j) & 15 for j in range(8)], -1).view(w.shape[0], -1, 64).float()
        value = (codes * packed[base + ".scales"].float()[..., None] + packed[base + ".biases"].float()[..., None]).view(w.shape)
        assert torch.equal(value, M.fake_quant(w.float())), name
        compared += 1
    assert compared > 10


def test_inverse_and_scan_gradients() -> None:
    a = (torch.randn(2, 1, 64, 64, dtype=torch.double).tril(-1) * 0.3).requires_grad_()
    eye = torch.eye(64, dtype=torch.double)
    upstream = torch.randn(2, 1, 64, 64, dtype=torch.double)
    mine, = torch.autograd.grad(M._Inverse.apply(a), a, upstream)
    plain, = torch.autograd.grad(torch.linalg.inv(eye + a), a, upstream)
    assert (mine - plain.tril(-1)).abs().max() < 1e-8
    m = (torch.randn(1, 2, 3, 128, 128, dtype=torch.double) * 0.05).requires_grad_()
    z = torch.randn(1, 2, 3, 128, 128, dtype=torch.double).requires_grad_()
    states = [torch.zeros_like(z[:, :, 0])]
    for i in range(2):
        states.append(m[:, :, i] @ states[-1] + z[:, :, i])
    plain_states, scanned = torch.stack(states, 2), M._Scan.apply(m, z)
    upstream = torch.randn_like(z)
    assert torch.allclose(plain_states, scanned)
    for x, y in zip(torch.autograd.grad(scanned, (m, z), upstream), torch.autograd.grad(plain_states, (m, z), upstream)):
        assert (x - y).abs().max() < 1e-8
