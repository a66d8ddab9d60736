"""Answers a job (JSON on stdin) with Hugging Face Transformers, plainly and with assisted generation.

Prints {"engine", "series": [{"mode", "requests", "calls": [[tokens, seconds], ...]}]} as its last line.
"""

import json
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Run the job."""
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["target"], padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    target = AutoModelForCausalLM.from_pretrained(job["target"], dtype=torch.float32).eval()
    draft = AutoModelForCausalLM.from_pretrained(job["draft"], dtype=torch.float32).eval()

    def generate(texts: list[str], tokens: int, **more: Any) -> list[float]:
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        started = time.perf_counter()
        out = target.generate(
            **inputs, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens,
            pad_token_id=tokenizer.pad_token_id, **more,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        return [len(texts) * (out.shape[1] - inputs["input_ids"].shape[1]), seconds]

    series = []
    for mode, more in (("plain", {}), ("assisted", {"assistant_model": draft})):
        generate(job["prompts"][:1], 4, **more)
        calls = [generate([text], job["tokens"], **more) for text in job["prompts"]]
        series.append({"mode": mode, "requests": 1, "calls": calls})
    together = job["batch"]
    calls = [generate(together, job["batch_tokens"])]
    series.append({"mode": "plain", "requests": len(together), "calls": calls})
    each = [generate([text], job["batch_tokens"], assistant_model=draft) for text in together]
    one = [sum(tokens for tokens, _ in each), sum(seconds for _, seconds in each)]
    series.append({"mode": "assisted, one after the other", "requests": len(together), "calls": [one]})
    print(json.dumps({"engine": f"Transformers {transformers.__version__}", "series": series}))


if __name__ == "__main__":
    main()
