"""Requests that name their own controller: each is asked only for its own, and all learn from the whole round."""

from collections.abc import Sequence
from typing import Any

from sgl_spec.config import RequestOptions
from sgl_spec.control.base import RequestRound, RequestView, RoundRecord
from sgl_spec.control.mixed import MixedController


class Part:
    """A controller that notes what it is asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Any] = []

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        self.asked.append([view.rid for view in views])
        return [len(self.name) + i for i in range(len(views))]

    def confidence(self, view: RequestView) -> float:
        self.asked.append(("confidence", view.rid))
        return 0.1 * len(self.name)

    def go_on(self, view: RequestView) -> float:
        self.asked.append(("go on", view.rid))
        return 0.2 * len(self.name)

    def observe(self, record: RoundRecord) -> None:
        self.asked.append(record)

    def forget(self, rid: str) -> None:
        self.asked.append(("forget", rid))

    def snapshot(self) -> dict[str, Any]:
        return {"name": self.name}


def view(rid: str, controller: str | None = None) -> RequestView:
    return RequestView(rid, 8, options=RequestOptions(controller=controller))


def test_each_request_has_its_own_controller() -> None:
    made: dict[str, Part] = {}

    def make(name: str) -> Part:
        assert name not in made
        made[name] = Part(name)
        return made[name]

    mixed = MixedController("throughput", make)
    assert mixed.name == "throughput"
    record = RoundRecord([RequestRound("a", 1, 1)], rows=2, verify_ms=1.0, total_ms=2.0)
    mixed.observe(record)  # before any round, nobody chose
    assert made["throughput"].asked == []
    assert mixed.snapshot() == {"name": "throughput"}
    views = [view("a", "ema"), view("b"), view("c", "ema"), view("d", "throughput")]
    assert mixed.choose(views) == [3, 10, 4, 11]
    assert made["ema"].asked == [["a", "c"]]
    assert made["throughput"].asked == [["b", "d"]]
    mixed.observe(record)
    assert made["ema"].asked[-1] is made["throughput"].asked[-1] is record
    assert (mixed.confidence(views[0]), mixed.confidence(views[1])) == (0.1 * 3, 0.1 * 10)
    assert (mixed.go_on(views[0]), mixed.go_on(views[1])) == (0.2 * 3, 0.2 * 10)
    assert made["ema"].asked[-2:] == [("confidence", "a"), ("go on", "a")]
    assert mixed.snapshot() == {"name": "throughput", "others": {"ema": {"name": "ema"}}}
    assert mixed.choose([]) == []
    mixed.observe(record)
    assert len(made["ema"].asked) == 4  # no request of its own ran in this round
    mixed.forget("a")
    assert made["ema"].asked[-1] == made["throughput"].asked[-1] == ("forget", "a")
