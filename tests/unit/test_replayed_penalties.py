"""Requests that are read again after a retraction: their penalties know what they have said, on SGLang's penalizers."""

from types import SimpleNamespace

import pytest
import torch

NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}


class Batch:
    def __init__(self, *reqs: tuple[dict[str, float], list[int]]) -> None:
        from sglang.srt.sampling import penaltylib

        tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=7)
        self.device = "cpu"
        self.reqs = [
            SimpleNamespace(
                sampling_params=SimpleNamespace(**{**NEUTRAL, **params}, stop_token_ids=None),
                output_ids=output,
                eos_token_ids=None,
                tokenizer=tokenizer,
            )
            for params, output in reqs
        ]
        kinds = {
            penaltylib.BatchedFrequencyPenalizer,
            penaltylib.BatchedMinNewTokensPenalizer,
            penaltylib.BatchedPresencePenalizer,
            penaltylib.BatchedRepetitionPenalizer,
        }
        made = penaltylib.BatchedPenalizerOrchestrator(8, self, kinds)
        self.sampling_info = SimpleNamespace(penalizer_orchestrator=made)


def laid_down(batch: Batch) -> tuple[list[list[float]], list[list[float]] | None]:
    """What is added to the logits of each request, and what divides or multiplies them."""
    made = batch.sampling_info.penalizer_orchestrator
    added = torch.zeros(len(batch.reqs), 8)
    made.accumulate_additive_penalties(added)
    scaled = made.accumulate_scaling_penalties()
    return added.tolist(), None if scaled is None else scaled.tolist()


def test_each_request_is_penalised_for_its_own_output() -> None:
    from sgl_spec.sglang_plugin.replayed_penalties import replay

    batch = Batch(
        ({}, [1, 2]),
        ({"repetition_penalty": 2.0, "frequency_penalty": 0.5}, [3, 3, 5]),
        ({"presence_penalty": 1.0, "repetition_penalty": 3.0}, []),
        ({"presence_penalty": 1.0, "min_new_tokens": 3}, [4, 4]),
        ({"min_new_tokens": 2}, [1, 1]),
    )
    replay(batch)
    added, scaled = laid_down(batch)
    held = float("-inf")
    assert added == [
        [0.0] * 8,
        [0.0, 0.0, 0.0, -1.0, 0.0, -0.5, 0.0, 0.0],
        [0.0] * 8,
        [0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, held],
        [0.0] * 8,
    ]
    assert scaled == [[1.0] * 8, [1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0], *[[1.0] * 8] * 3]
    assert batch.sampling_info.penalizer_orchestrator.batch is batch
    batch.sampling_info.penalizer_orchestrator.filter(torch.tensor([1]))
    batch.reqs = batch.reqs[1:2]
    assert laid_down(batch)[0] == [[0.0, 0.0, 0.0, -1.0, 0.0, -0.5, 0.0, 0.0]]


@pytest.mark.parametrize("reqs", [[({"frequency_penalty": 1.0}, [])], [({}, [1, 2])]])
def test_penalizers_that_are_right_stay(reqs) -> None:
    from sgl_spec.sglang_plugin.replayed_penalties import replay

    batch = Batch(*reqs)
    made = batch.sampling_info.penalizer_orchestrator
    replay(batch)
    assert batch.sampling_info.penalizer_orchestrator is made
