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
    stride = verdict.tokens.shape[1]
    output = LogitsProcessorOutput(next_token_logits=logits)
    if batch.return_logprob:
        columns = torch.arange(stride)
        starts = torch.tensor([0, *[length + 1 for length in lens[:-1]]]).cumsum(0)
        index = torch.where(columns <= verdict.accepted[:, None], starts[:, None] + columns, -1)
        emitted = torch.zeros(logits.shape[0], dtype=torch.int64)
        emitted[index[index >= 0]] = verdict.tokens[index >= 0]
        compute_spec_logprobs(batch, output, emitted, accept_index=index)
    accept_lens = verdict.accepted + 1
    return GenerationBatchResult(
        logits_output=output,
        next_token_ids=verdict.tokens.clamp(min=0).reshape(-1),
        accept_lens=accept_lens,
        new_seq_lens=batch.seq_lens + accept_lens.to(batch.seq_lens.device),
        speculative_num_draft_tokens=stride,
        next_draft_input=NothingToRelay(),
    )
