"""The prompts: enough of them, and no held-out prompt among the training ones."""

import pytest

from sgl_spec.train.prompts import TASKS, held_out_prompts, summary_request, training_prompts


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_large_and_disjoint(task):
    train, held_out = training_prompts(task), held_out_prompts(task)
    assert len(train) >= 300
    assert len(set(held_out)) == len(held_out) >= 30
    assert not set(train) & set(held_out)


def test_order_is_fixed():
    assert training_prompts("chat") == training_prompts("chat")
    assert summary_request("A text.") == summary_request("A text.")
    assert "A text." in summary_request("A text.")
