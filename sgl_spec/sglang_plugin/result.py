"""A round's outcome, laid out as SGLang's result processor reads it."""

from array import array
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult

from sgl_spec.sglang_plugin.relay import NOTHING
from sgl_spec.sglang_plugin.verdict import Verdict


class HostResult(GenerationBatchResult):
    """A result of a CPU: there is nothing to copy."""

    def copy_to_cpu(self, return_logprob: bool, return_hidden_states: bool = True) -> None:
        """Say that all is here."""
        assert self.copy_done is not None  # the scheduler has just set it
        self.copy_done.record()


class Numbers:
    """int64 tensors by length, each written anew with every call: making one is slow where caches are cold."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[array[int], torch.Tensor]] = {}

    def __call__(self, values: list[int]) -> torch.Tensor:
        """Return the tensor of this length with these values; it is good until the next call with as many."""
        kept = self._kept.get(len(values))
        if kept is None:
            memory = array("q", values)
            kept = self._kept[len(values)] = memory, torch.frombuffer(memory, dtype=torch.int64)
        else:
            kept[0][:] = array("q", values)
        return kept[1]


class Results:
    """Lays out the results of a worker's rounds; a result is read before the next one is made."""

    def __init__(self) -> None:
        self._tokens, self._counts, self._lengths = Numbers(), Numbers(), Numbers()

    def of(
        self, batch: Any, ends: list[int], lens: list[int], logits: torch.Tensor | None, verdict: Verdict
    ) -> GenerationBatchResult:
        """Lay out the emitted tokens of requests with `lens` guesses after `ends` committed ones.

        `logits` [sum of lens + 1, V] gives logprobs; None where nobody asks for them.
        """
        stride = max(lens) + 1
        output = LogitsProcessorOutput(next_token_logits=logits)
        if batch.return_logprob:
            assert logits is not None
            add_logprobs(batch, output, lens, verdict)
        counts = [len(tokens) for tokens in verdict.tokens]
        rows = [token for tokens in verdict.tokens for token in tokens + [0] * (stride - len(tokens))]
        lengths = [end + count for end, count in zip(ends, counts, strict=True)]
        on_host = batch.seq_lens.device.type == "cpu"
        if on_host:
            # What the scheduler would do, without a sum over a tensor; it leaves lengths that are the batch's already.
            batch.seq_lens = batch.seq_lens_cpu = self._lengths(lengths)
            batch.seq_lens_sum = sum(lengths)
        return (HostResult if on_host else GenerationBatchResult)(
            logits_output=output,
            next_token_ids=self._tokens(rows),
            accept_lens=self._counts(counts),
            new_seq_lens=batch.seq_lens if on_host else torch.tensor(lengths).to(batch.seq_lens),
            speculative_num_draft_tokens=stride,
            next_draft_input=NOTHING,
        )


def add_logprobs(batch: Any, output: LogitsProcessorOutput, lens: list[int], verdict: Verdict) -> None:
    """Add the logprobs of the emitted tokens to `output`, whose logits are those of all rows."""
    index = torch.full((len(lens), max(lens) + 1), -1)
    emitted, start = torch.zeros(sum(lens) + len(lens), dtype=torch.int64), 0
    for i, (length, tokens) in enumerate(zip(lens, verdict.tokens, strict=True)):
        index[i, : len(tokens)] = torch.arange(start, start + len(tokens))
        emitted[start : start + len(tokens)] = torch.tensor(tokens)
        start += length + 1
    compute_spec_logprobs(batch, output, emitted, accept_index=index)
