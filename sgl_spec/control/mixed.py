"""One controller per policy name, so that a request may ask for its own (`controller` in its options)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sgl_spec.control.base import Controller, RequestView, RoundRecord


class MixedController:
    """Hands each request to the controller that its options name, by default the server's."""

    def __init__(self, default: str, make: Callable[[str], Controller]) -> None:
        self.name = default
        self.default = default
        self.make = make
        self.parts: dict[str, Controller] = {default: make(default)}
        self.active: list[str] = []  # those that chose in this round

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        """K per request, each by its own controller."""
        chosen = [0] * len(views)
        groups: dict[str, list[int]] = {}
        for i, view in enumerate(views):
            groups.setdefault(view.options.controller or self.default, []).append(i)
        self.active = list(groups)
        for name, members in groups.items():
            part = self._part(name).choose([views[i] for i in members])
            for i, k in zip(members, part, strict=True):
                chosen[i] = k
        return chosen

    def confidence(self, view: RequestView) -> float:
        """By the request's own controller."""
        return self._part(view.options.controller or self.default).confidence(view)

    def go_on(self, view: RequestView) -> float:
        """By the request's own controller."""
        return self._part(view.options.controller or self.default).go_on(view)

    def observe(self, record: RoundRecord) -> None:
        """All that chose in this round see the whole round: costs belong to the batch."""
        for name in self.active:
            self.parts[name].observe(record)

    def forget(self, rid: str) -> None:
        """The request ended."""
        for part in self.parts.values():
            part.forget(rid)

    def snapshot(self) -> dict[str, Any]:
        """The default controller's, with the others beside it."""
        others = {name: part.snapshot() for name, part in self.parts.items() if name != self.default}
        own = self.parts[self.default].snapshot()
        return {**own, "others": others} if others else own

    def _part(self, name: str) -> Controller:
        part = self.parts.get(name)
        if part is None:
            part = self.parts[name] = self.make(name)
        return part
