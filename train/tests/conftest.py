"""Run with the training environment: `python -m pytest train/tests` (torch, transformers, tokenizers, jinja2)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TRAIN))


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The golden fixtures beside the checkout (or where SPLASH_FIXTURES points)."""
    folder = Path(os.environ.get("SPLASH_FIXTURES", TRAIN.parents[1] / "shared" / "fixtures"))
    if not folder.exists():
        pytest.skip("golden fixtures are not here")
    return folder
