"""SGLang's front end as programs meet it: which options `gen` takes, and whose variables a fork knows."""

from typing import Any

import pytest
import sglang as sgl
from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.interpreter import StreamExecutor


class Said(BaseBackend):
    """Answers every `gen` with a letter, and says how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def generate(self, s: StreamExecutor, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        self.asked += 1
        return "z", {"number": self.asked}


@pytest.mark.parametrize("option", ["repetition_penalty", "logit_bias", "seed"])
def test_what_gen_does_not_know_is_a_type_error(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        sgl.gen("x", **{option: 1})


def test_what_a_variable_cost_is_known_where_it_was_generated() -> None:
    """A fork has its parent's text and variables; the statistics of a variable stay with the state that made it."""
    branches: list[Any] = []

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")
        fork = s.fork(2)
        fork[0] += sgl.gen("y")
        fork[0].sync()
        branches.extend(fork)

    state = program.run(backend=Said())
    assert state.get_meta_info("x") == {"number": 1}
    assert branches[0].get_meta_info("y") == {"number": 2}
    assert (branches[0]["x"], branches[0].text()) == ("z", "azz")
