"""What a draft model has read, by slot: the leading positions that are marked, until the target writes there again."""

import numpy as np
import torch

from tests.unit.toy_passes import ToyModel


def test_reading_ends_where_the_first_mark_is_missing() -> None:
    table = torch.tensor([[7, 3, 9, 1, 5, 0]], dtype=torch.int32)
    model = ToyModel(table, 12, 4, 1)
    slots = model.forward.held(0, 0, 5)
    assert model.read_until(slots) == 0
    model.mark(0, 0, 3)
    assert model.read_until(slots) == 3
    assert np.flatnonzero(model.drafted).tolist() == [3, 7, 9]
    model.mark(0, 3, 5)
    assert model.read_until(slots) == 5
    model.forget(np.array([9, 5]))
    assert model.read_until(slots) == 2
    assert model.read_until(slots[:0]) == 0
