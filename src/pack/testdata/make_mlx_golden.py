"""Writes mlx_golden.safetensors: what mlx.core.quantize makes of bf16 matrices, and what mlx.core.dequantize makes of
codes of every width. Needs `pip install "mlx[cpu]==0.32.4" numpy` outside the tree; run by hand, the result is
committed.

    python make_mlx_golden.py [ROWS COLS OUT]
"""

import sys

import mlx.core as mx
import numpy as np

rows, cols = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 3 else (32, 192)
out = sys.argv[3] if len(sys.argv) > 3 else "mlx_golden.safetensors"
random = np.random.default_rng(20261129)


def hard_rows(width):
    """Groups at the edges of the rule: no range, no sign, tiny range, ties between the ends, exact grids, extremes."""
    grid = (np.arange(width) % 16).astype(np.float32)
    return np.stack(
        [
            np.zeros(width),
            np.full(width, 0.75),
            np.full(width, -0.75),
            np.full(width, 1e-8),
            np.linspace(1e-9, 5e-8, width),
            np.linspace(-5e-8, 5e-8, width),
            np.where(np.arange(width) % 2, 1.0, -1.0),
            random.uniform(0.5, 1.0, width),
            random.uniform(-1.0, -0.5, width),
            grid * 0.125 - 1.0,
            grid * 0.125,
            -grid * 0.125,
            random.normal(size=width) * 1e30,
            random.normal(size=width) * 1e-30,
            np.where(np.arange(width) % 64 == 3, 100.0, random.normal(size=width)),
            np.where(np.arange(width) % 64 == 60, -100.0, random.normal(size=width)),
        ]
    )


values = random.normal(size=(rows, cols)) * np.exp(random.normal(size=(rows, 1)))
values[:16] = hard_rows(cols)
matrix = mx.array(values.astype(np.float32)).astype(mx.bfloat16)
codes, scales, biases = mx.quantize(matrix, group_size=64, bits=4)
tensors = {"matrix": matrix, "weight": codes, "scales": scales, "biases": biases}
if len(sys.argv) <= 3:
    wide = mx.array(random.normal(size=(4, 128)).astype(np.float32))
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            c, s, b = mx.quantize(wide, group_size=group, bits=bits)
            key = f"b{bits}g{group}"
            tensors |= {key + ".weight": c, key + ".scales": s, key + ".biases": b}
            tensors[key + ".values"] = mx.dequantize(c, s, b, group_size=group, bits=bits)
mx.save_safetensors(out, tensors)
