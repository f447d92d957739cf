"""Carry bf16 weights through a narrow door: byte planes apart, xz, parts of at most 15 MiB.

    python train/shuttle.py pack MODEL.safetensors DIR        writes DIR/weights.0, weights.1, ...
    python train/shuttle.py unpack DIR MODEL.safetensors

The upper bytes (sign and exponent) of trained weights hold about 3 bits, so the whole shrinks to some 70 %. Exact.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import numpy as np

PART = 15 << 20


def pack(source: Path, folder: Path) -> None:
    raw = np.frombuffer(source.read_bytes(), dtype=np.uint8)
    header = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    body = raw[header:]
    blocks = [raw[:header].tobytes(), body[0::2].tobytes(), lzma.compress(body[1::2].tobytes(), preset=1)]
    data = b"".join(len(b).to_bytes(8, "little") + b for b in blocks)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(0, len(data), PART):
        (folder / f"weights.{i // PART}").write_bytes(data[i:i + PART])


def unpack(folder: Path, target: Path) -> None:
    data = b"".join(p.read_bytes() for p in sorted(folder.glob("weights.*"), key=lambda p: int(p.suffix[1:])))
    blocks, at = [], 0
    while at < len(data):
        n = int.from_bytes(data[at:at + 8], "little")
        blocks.append(data[at + 8:at + 8 + n])
        at += 8 + n
    low, high = np.frombuffer(blocks[1], dtype=np.uint8), np.frombuffer(lzma.decompress(blocks[2]), dtype=np.uint8)
    body = np.empty(len(low) + len(high), dtype=np.uint8)
    body[0::2], body[1::2] = low, high
    target.write_bytes(blocks[0] + body.tobytes())


if __name__ == "__main__":
    {"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
