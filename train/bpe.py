"""Train the byte-level BPE of exactly 8192 ids with the family's pre-tokenizer and special tokens.

    python train/bpe.py --corpus DIR --out DIR

Writes tokenizer.json, tokenizer_config.json (with the chat template), and generation_config.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import dialogues

VOCAB = 8192
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# the family's added tokens in the family's order (spec/qwen-models.md 5); True = special
ADDED: tuple[tuple[str, bool], ...] = (
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<|object_ref_start|>", True), ("<|object_ref_end|>", True),
    ("<|box_start|>", True), ("<|box_end|>", True), ("<|quad_start|>", True), ("<|quad_end|>", True), ("<|vision_start|>", True),
    ("<|vision_end|>", True), ("<|vision_pad|>", True), ("<|image_pad|>", True), ("<|video_pad|>", True), ("<tool_call>", False),
    ("</tool_call>", False), ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False), ("<|fim_pad|>", False),
    ("<|repo_name|>", False), ("<|file_sep|>", False), ("<tool_response>", False), ("</tool_response>", False), ("<think>", False),
    ("</think>", False), ("<|audio_start|>", True), ("<|audio_end|>", True), ("<tts_pad>", True), ("<tts_text_bos>", True),
    ("<tts_text_eod>", True), ("<tts_text_bos_single>", True), ("<|audio_pad|>", True),
    ("<|mask|>", True),  # reserved: the draft's empty slots; never in data
)


def text_samples(corpus: Path, megabytes: float, conversations: int) -> Iterator[str]:
    """A slice of every part of the corpus, then dialogues."""
    documents = (corpus / "lm.train.txt").read_text().split("\0")
    total = sum(map(len, documents))
    step = max(1, round(total / (megabytes * 1e6)))
    yield from documents[::step]
    r = dialogues.Rand(11, "train")
    dialogues.load_words(str(corpus / "words.json"))
    for _ in range(conversations):
        text = "".join(piece for piece, _ in dialogues.render(dialogues.sample(r)))
        for token, _ in ADDED:
            text = text.replace(token, "\n")
        yield text


def train(corpus: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(ADDED), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(text_samples(corpus, 30, 30_000), trainer)
    tokenizer.add_tokens([AddedToken(t, special=special, normalized=False) for t, special in ADDED])
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def write(tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    ids = {t: tokenizer.token_to_id(t) for t, _ in ADDED}
    template = (Path(__file__).parent / "chat_template.jinja").read_text().rstrip("\n")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_prefix_space": False, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "errors": "replace", "clean_up_tokenization_spaces": False,
        "split_special_tokens": False, "model_max_length": 4096, "pretokenize_regex": PATTERN,
        "added_tokens_decoder": {str(ids[t]): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": s} for t, s in ADDED},
        "additional_special_tokens": [t for t, s in ADDED if s], "chat_template": template,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n")
    generation = {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"],
                  "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.95}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write(train(args.corpus), args.out)


if __name__ == "__main__":
    main()
