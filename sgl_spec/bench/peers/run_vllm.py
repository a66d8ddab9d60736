"""Answers a job (JSON on stdin) with vLLM in fp32: plainly, with its n-gram drafts, and with the draft model.

Prints as `run_transformers.py` does.
"""

import json
import os
import sys
import time
from typing import Any

KV_GB = "2"
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "n-gram, K=4": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "draft model, K=3": {"method": "draft_model", "num_speculative_tokens": 3},
}


def series_of(job: dict[str, Any], mode: str, speculative: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Load the engine in this mode; one series at batch 1 and one of all prompts at once."""
    from vllm import LLM, SamplingParams

    if speculative is not None and speculative["method"] == "draft_model":
        speculative = {**speculative, "model": job["draft"]}
    llm = LLM(
        model=job["target"],
        dtype="float32",
        max_model_len=2048,
        enforce_eager=True,
        disable_log_stats=True,
        max_num_seqs=len(job["batch"]),
        speculative_config=speculative,
    )

    def ask(texts: list[str], tokens: int) -> list[float]:
        greedy = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        started = time.perf_counter()
        answers = llm.generate(texts, greedy, use_tqdm=False)
        seconds = time.perf_counter() - started
        return [sum(len(answer.outputs[0].token_ids) for answer in answers), seconds]

    ask(job["prompts"][:1], 4)
    alone = [ask([text], job["tokens"]) for text in job["prompts"]]
    together = [ask(job["batch"], job["batch_tokens"])]
    return [
        {"mode": mode, "requests": 1, "calls": alone},
        {"mode": mode, "requests": len(job["batch"]), "calls": together},
    ]


def main() -> None:
    """Run the job's mode, which the first argument names; without one, each mode in a process of its own."""
    job = json.load(sys.stdin)
    if len(sys.argv) > 1:
        print(json.dumps(series_of(job, sys.argv[1], WAYS[sys.argv[1]])))
        return
    import subprocess
    from importlib.metadata import version

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_GB)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    series, failed = [], {}
    for mode in WAYS:
        command = [sys.executable, __file__, mode]
        done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=False)
        if done.returncode:
            failed[mode] = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]
        else:
            series += json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps({"engine": f"vLLM {version('vllm-cpu')}", "series": series, "failed": failed}))


if __name__ == "__main__":
    main()
