"""Write the golden file of an exported target: ids and the float32 logits that transformers computes for them.

    python train/golden.py --target HF_FOLDER --out FILE.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH = 48  # 48 x 8192 floats: 1.5 MiB
MESSAGES = [{"role": "user", "content": "Hello! My name is Ada and I live in Lisbon."}, {"role": "assistant", "content": "Hello, Ada! Nice to meet you."},
            {"role": "user", "content": "Where do I live? And what is 12 + 30?"}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[:, :LENGTH]
    with torch.no_grad():
        logits = model(ids).logits[0].float()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file({"ids": ids[0].to(torch.int32), "logits": logits.contiguous()}, str(args.out))
    print(ids.shape, logits.shape, "next:", tokenizer.decode(logits[-1].argmax()))


if __name__ == "__main__":
    main()
