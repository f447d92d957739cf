"""Write the golden file of the built-in model: what transformers and PyTorch compute with the weights as the pack holds them.

    python train/golden.py --target HF_FOLDER --draft FOLDER --out FILE.safetensors [--source-out FILE]

Every matrix goes through 4 bits and back by the pack's rule, then the target runs in transformers in float32, and the
draft in draft_model.py over the target's tap features. The file holds `ids` and `logits` of a conversation, and for some
lengths n of context one draft block: `draft.n.hidden`, `.logits`, `.candidates`, `.scores`, `.path`. tests/golden/tiny_test.cc
compares `splash score` and `splash draft` on the committed pack with it. --source-out gets the ids and logits of the source
weights, for a comparison with `splash score --weights source` (too large for the tree).
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import draft_model as D
import model as M

LENGTH = 48  # 48 x 8192 floats: 1.5 MiB
CONTEXTS = (27, 42)
MESSAGES = [{"role": "user", "content": "Hello! My name is Ada and I live in Lisbon."}, {"role": "assistant", "content": "Hello, Ada! Nice to meet you."},
            {"role": "user", "content": "Where do I live? And what is 12 + 30?"}]


def through_4_bits(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: M.fake_quant(t) if M.is_matrix(n, tuple(t.shape)) and "codebook" not in n else t.float() for n, t in tensors.items()}


@torch.no_grad()
def run(model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    out = model(ids, output_hidden_states=True)
    return out.logits[0].float(), out.hidden_states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source-out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[:, :LENGTH]
    if args.source_out:
        save_file({"ids": ids[0].to(torch.int32), "logits": run(model, ids)[0].contiguous()}, str(args.source_out))
    model.load_state_dict(through_4_bits(model.state_dict()))
    logits, hidden = run(model, ids)
    found = {"ids": ids[0].to(torch.int32), "logits": logits.contiguous()}

    c = D.DraftConfig.from_folder(args.draft)
    w = through_4_bits(load_file(args.draft / "model.safetensors"))
    table = model.get_input_embeddings().weight.detach()
    features = torch.cat([hidden[i + 1][0] for i in c.taps], -1)[None]
    for n in CONTEXTS:
        anchor = torch.tensor([[n]])
        seen = D.visible(anchor, torch.zeros(1, ids.shape[1], dtype=torch.long), n, c)
        with torch.no_grad():
            h = D.blocks(features[:, :n], ids[:, n:n + 1], anchor, torch.arange(n)[None], seen, table, w, c)[0, 0]
            block = h @ table.T
            candidates, scores, path = D.walk(h[1:], block[1:], ids[0, n], D.codebooks(w, table), w, c)
        for name, value in (("hidden", h), ("logits", block), ("candidates", candidates.to(torch.int32)), ("scores", scores), ("path", path.to(torch.int32))):
            found[f"draft.{n}.{name}"] = value.contiguous()
        print(n, "follows:", tokenizer.decode(ids[0, n:n + 8]), "| draft:", tokenizer.decode(path))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(found, str(args.out))
    print(ids.shape, logits.shape)


if __name__ == "__main__":
    main()
