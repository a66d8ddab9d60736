"""The article's rule: acceptance of a round above 0.8 lengthens the draft by one, below 0.5 shortens it."""

from __future__ import annotations

from sgl_spec.control.base import RequestRound, StepPolicy

UP, DOWN = 0.8, 0.5
LONGEST, SHORTEST = 10, 2


class ThresholdController(StepPolicy):
    """Per request: up by one to 10, down by one to 2. It never stops drafting: kept for comparison."""

    name = "threshold"

    def update(self, k: int, outcome: RequestRound) -> int:
        """One step by the acceptance rate of this round; a round without drafts says nothing."""
        if outcome.proposed == 0:
            return k
        rate = outcome.accepted / outcome.proposed
        if rate > UP:
            return max(k, min(k + 1, LONGEST, self.k_max))
        if rate < DOWN:
            return min(k, max(k - 1, SHORTEST))
        return k
