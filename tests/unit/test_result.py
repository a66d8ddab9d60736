"""A round's outcome as SGLang's scheduler reads it."""

from types import SimpleNamespace

import torch


def test_the_lengths_of_a_batch_on_the_host_are_set_once():
    from sgl_spec.sglang_plugin.result import Results
    from sgl_spec.sglang_plugin.verdict import Verdict

    before = torch.tensor([10, 20])
    batch = SimpleNamespace(seq_lens=before, seq_lens_cpu=before, seq_lens_sum=30, return_logprob=False)
    verdict = Verdict([1, 0], [[7, 8], [9]])
    result = Results().of(batch, [10, 20], [2, 1], None, verdict)
    assert result.next_token_ids.tolist() == [7, 8, 0, 9, 0, 0]
    assert result.accept_lens.tolist() == [2, 1]
    assert result.speculative_num_draft_tokens == 3
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == [12, 21]
    assert batch.seq_lens_sum == 33
    assert result.new_seq_lens is batch.seq_lens  # so the scheduler does not do it again
    assert before.tolist() == [10, 20]
    assert {t.dtype for t in (result.next_token_ids, result.accept_lens, batch.seq_lens)} == {torch.int64}


def test_lengths_on_a_device_are_left_to_the_scheduler():
    from sgl_spec.sglang_plugin.result import Results
    from sgl_spec.sglang_plugin.verdict import Verdict

    before = torch.zeros(1, dtype=torch.int64, device="meta")
    batch = SimpleNamespace(seq_lens=before, seq_lens_cpu=None, seq_lens_sum=None, return_logprob=False)
    result = Results().of(batch, [10], [0], None, Verdict([0], [[7]]))
    assert batch.seq_lens is before
    assert (result.new_seq_lens.device.type, result.new_seq_lens.dtype) == ("meta", torch.int64)
    assert result.next_token_ids.is_cpu


def test_later_rounds_write_into_the_tensors_of_the_first():
    from sgl_spec.sglang_plugin.result import Results
    from sgl_spec.sglang_plugin.verdict import Verdict

    results, start = Results(), torch.tensor([10, 20])
    batch = SimpleNamespace(seq_lens=start, seq_lens_cpu=start, seq_lens_sum=30, return_logprob=False)
    first = results.of(batch, [10, 20], [1, 1], None, Verdict([1, 1], [[1, 2], [3, 4]]))
    one = SimpleNamespace(seq_lens=torch.tensor([5]), seq_lens_cpu=None, seq_lens_sum=5, return_logprob=False)
    other = results.of(one, [5], [1], None, Verdict([0], [[6]]))
    second = results.of(batch, [12, 22], [1, 0], None, Verdict([0, 0], [[7], [8]]))
    assert second.next_token_ids is first.next_token_ids
    assert second.next_token_ids.tolist() == [7, 0, 8, 0]
    assert second.accept_lens.tolist() == [1, 1]
    assert batch.seq_lens.tolist() == [13, 23]
    assert (other.next_token_ids.tolist(), other.accept_lens.tolist(), one.seq_lens.tolist()) == ([6, 0], [1], [6])
    assert (start.tolist(), one.seq_lens_sum, batch.seq_lens_sum) == ([10, 20], 6, 36)
