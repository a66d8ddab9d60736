"""Hugging Face Transformers: plain, assisted generation, and its prompt lookup, each with its own defaults.

Assisted generation takes one request at a time, so several are answered one after the other.
"""

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from sgl_spec.bench.peers.wire import Loaded, serve

ONE_BY_ONE = "assisted, one after the other"
LOOKUP_TOKENS = 10
WARM_TOKENS = 8


def load(job: dict[str, Any]) -> Loaded:
    """Both models in fp32."""
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["target"], padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    target = AutoModelForCausalLM.from_pretrained(job["target"], dtype=torch.float32).eval()
    draft = AutoModelForCausalLM.from_pretrained(job["draft"], dtype=torch.float32).eval()
    lookup = f"prompt lookup, {LOOKUP_TOKENS} tokens"
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "assisted": {"assistant_model": draft},
        ONE_BY_ONE: {"assistant_model": draft},
        lookup: {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
    }

    def decode(mode: str, texts: list[str], tokens: int) -> tuple[int, list[str]]:
        if mode == ONE_BY_ONE and len(texts) > 1:
            answers = [decode(mode, [text], tokens) for text in texts]
            return sum(count for count, _ in answers), [text for _, (text,) in answers]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        out = target.generate(
            **inputs,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.pad_token_id,
            **ways[mode],
        )
        new = out[:, inputs["input_ids"].shape[1] :]
        return new.numel(), tokenizer.batch_decode(new, skip_special_tokens=True)

    for mode in ways:
        decode(mode, ["Hello"], WARM_TOKENS)
    together = len(job["batch"])
    modes = {"plain": [1, together], "assisted": [1], ONE_BY_ONE: [together], lookup: [1]}
    return Loaded(f"Transformers {transformers.__version__}", decode, modes)


if __name__ == "__main__":
    serve(load)
