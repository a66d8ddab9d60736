"""A round's outcome as SGLang's scheduler reads it."""

from types import SimpleNamespace

import torch


def test_the_lengths_of_a_batch_on_the_host_are_set_once():
    from sgl_spec.sglang_plugin.result import batch_result
    from sgl_spec.sglang_plugin.verdict import Verdict

    before = torch.tensor([10, 20])
    batch = SimpleNamespace(seq_lens=before, seq_lens_cpu=before, seq_lens_sum=30, return_logprob=False)
    verdict = Verdict([1, 0], [[7, 8], [9]])
    result = batch_result(batch, [10, 20], [2, 1], None, verdict)
    assert result.next_token_ids.tolist() == [7, 8, 0, 9, 0, 0]
    assert result.accept_lens.tolist() == [2, 1]
    assert result.speculative_num_draft_tokens == 3
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == [12, 21]
    assert batch.seq_lens_sum == 33
    assert result.new_seq_lens is batch.seq_lens  # so the scheduler does not do it again
    assert before.tolist() == [10, 20]
    assert {t.dtype for t in (result.next_token_ids, result.accept_lens, batch.seq_lens)} == {torch.int64}


def test_lengths_on_a_device_are_left_to_the_scheduler():
    from sgl_spec.sglang_plugin.result import batch_result
    from sgl_spec.sglang_plugin.verdict import Verdict

    before = torch.zeros(1, dtype=torch.int64, device="meta")
    batch = SimpleNamespace(seq_lens=before, seq_lens_cpu=None, seq_lens_sum=None, return_logprob=False)
    result = batch_result(batch, [10], [0], None, Verdict([0], [[7]]))
    assert batch.seq_lens is before
    assert (result.new_seq_lens.device.type, result.new_seq_lens.dtype) == ("meta", torch.int64)
    assert result.next_token_ids.is_cpu
