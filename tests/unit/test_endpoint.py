"""The front end's backend over a server: what stock code gets wrong there."""

from typing import Any

import sglang as sgl

from sgl_spec.endpoint import SpecEndpoint
from tests.unit.fake_engine import FakeEngine, answer_to


def test_forks_can_be_joined_into_one_prompt() -> None:
    """Stock code asks for an address that SGLang 0.5.23 does not serve, and never wakes up."""

    @sgl.function
    def facts(s: Any) -> None:
        s += "Facts.\n"
        forks = s.fork(2)
        forks += lambda at: f"Fact {at}.\n"
        forks.join(mode="concate_and_append")
        s += "Answer:" + sgl.gen("answer", max_tokens=8)

    with FakeEngine() as engine:
        state = facts.run(backend=SpecEndpoint(engine.url))
        assert state["answer"] == answer_to("Facts.\nFact 0.\nFact 1.\nAnswer:")
