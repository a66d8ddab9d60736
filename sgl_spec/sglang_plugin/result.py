"""A round's outcome, laid out as SGLang's result processor reads it."""

from array import array
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult

from sgl_spec.sglang_plugin.relay import NothingToRelay
from sgl_spec.sglang_plugin.verdict import Verdict


class HostResult(GenerationBatchResult):
    """A result of a CPU: there is nothing to copy."""

    def copy_to_cpu(self, return_logprob: bool, return_hidden_states: bool = True) -> None:
        """Say that all is here."""
        assert self.copy_done is not None  # the scheduler has just set it
        self.copy_done.record()


def batch_result(
    batch: Any, ends: list[int], lens: list[int], logits: torch.Tensor | None, verdict: Verdict
) -> GenerationBatchResult:
    """Lay out the emitted tokens of requests with `lens` guesses after `ends` committed ones.

    `logits` [sum of lens + 1, V] gives logprobs; None where nobody asks for them.
    """
    stride = max(lens) + 1
    output = LogitsProcessorOutput(next_token_logits=logits)
    if batch.return_logprob:
        assert logits is not None
        index = torch.full((len(lens), stride), -1)
        emitted, start = torch.zeros(logits.shape[0], dtype=torch.int64), 0
        for i, (length, tokens) in enumerate(zip(lens, verdict.tokens, strict=True)):
            index[i, : len(tokens)] = torch.arange(start, start + len(tokens))
            emitted[start : start + len(tokens)] = torch.tensor(tokens)
            start += length + 1
        compute_spec_logprobs(batch, output, emitted, accept_index=index)
    counts = [len(tokens) for tokens in verdict.tokens]
    rows = [token for tokens in verdict.tokens for token in tokens + [0] * (stride - len(tokens))]
    lengths = [end + count for end, count in zip(ends, counts, strict=True)]
    on_host = batch.seq_lens.device.type == "cpu"
    new_seq_lens = numbers(lengths)
    if on_host:
        # What the scheduler would do, without a sum over a tensor; it leaves lengths that are the batch's already.
        batch.seq_lens = batch.seq_lens_cpu = new_seq_lens
        batch.seq_lens_sum = sum(lengths)
    else:
        new_seq_lens = new_seq_lens.to(batch.seq_lens)
    return (HostResult if on_host else GenerationBatchResult)(
        logits_output=output,
        next_token_ids=numbers(rows),
        accept_lens=numbers(counts),
        new_seq_lens=new_seq_lens,
        speculative_num_draft_tokens=stride,
        next_draft_input=NothingToRelay(),
    )


def numbers(values: list[int]) -> torch.Tensor:
    """Return an int64 tensor, as ``torch.tensor`` does, more quickly where caches are cold."""
    return torch.frombuffer(array("q", values), dtype=torch.int64)
