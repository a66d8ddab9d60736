"""What several files of unit tests share: the toy target, and one thread for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Toys are slower on several threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the toy target."""
    from tests.unit.train_toys import toy_target

    return toy_target(tmp_path_factory.mktemp("toy") / "target")
