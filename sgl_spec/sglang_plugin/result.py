"""A round's outcome, laid out as SGLang's result processor reads it."""

from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult

from sgl_spec.sglang_plugin.relay import NothingToRelay
from sgl_spec.sglang_plugin.verdict import Verdict


def batch_result(batch: Any, lens: list[int], logits: torch.Tensor, verdict: Verdict) -> GenerationBatchResult:
    """Lay out the emitted tokens of requests with `lens` guesses; `logits` [sum of lens + 1, V] gives logprobs."""
    stride = max(lens) + 1
    output = LogitsProcessorOutput(next_token_logits=logits)
    if batch.return_logprob:
        index = torch.full((len(lens), stride), -1)
        emitted, start = torch.zeros(logits.shape[0], dtype=torch.int64), 0
        for i, (length, tokens) in enumerate(zip(lens, verdict.tokens, strict=True)):
            index[i, : len(tokens)] = torch.arange(start, start + len(tokens))
            emitted[start : start + len(tokens)] = torch.tensor(tokens)
            start += length + 1
        compute_spec_logprobs(batch, output, emitted, accept_index=index)
    accept_lens = torch.tensor([len(tokens) for tokens in verdict.tokens])
    rows = [token for tokens in verdict.tokens for token in tokens + [0] * (stride - len(tokens))]
    return GenerationBatchResult(
        logits_output=output,
        next_token_ids=torch.tensor(rows),
        accept_lens=accept_lens,
        new_seq_lens=batch.seq_lens + accept_lens.to(batch.seq_lens.device),
        speculative_num_draft_tokens=stride,
        next_draft_input=NothingToRelay(),
    )
