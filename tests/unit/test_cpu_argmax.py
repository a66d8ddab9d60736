"""The argmax of rows is PyTorch's: ties, tails, infinities, one column."""

import pytest
import torch

from sgl_spec.cpu.argmax import argmax


@pytest.mark.parametrize("columns", [1, 7, 31, 1023, 1024, 1025, 3000])
def test_it_is_that_of_torch(columns):
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns))
    assert argmax(x) == x.argmax(dim=-1).tolist()


@pytest.mark.parametrize("columns", [9, 2500])
def test_the_lowest_index_wins_a_tie(columns):
    x = torch.zeros(3, columns)
    x[1, [columns - 1, columns // 2, columns // 3]] = 2.0
    x[2] = -torch.inf
    assert argmax(x) == [0, columns // 3, 0]


def test_infinities_and_masked_rows():
    x = torch.full((2, 1500), -torch.inf)
    x[0, 1499] = -5.0
    x[1, 1100] = torch.inf
    assert argmax(x) == [1499, 1100]


def test_other_layouts_and_types_take_the_way_of_torch():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    assert argmax(x.T) == x.T.argmax(dim=-1).tolist()
    assert argmax(x.double()) == x.argmax(dim=-1).tolist()
