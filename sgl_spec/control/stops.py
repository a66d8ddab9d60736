"""When a chain of guesses ends early: thresholds on the product of the draft's probabilities, from measured costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from sgl_spec.control.base import RequestView, confidence_of
from sgl_spec.control.cost import KILO, CostModel
from sgl_spec.control.plan import Value
from sgl_spec.control.trust import Trust

NEXT_RIGHT = 0.5  # chance of a guess of which nothing but its predecessors' probabilities is known
LEAST_SURE = 0.9  # no threshold asks for more


@dataclass(slots=True)
class EarlyStop:
    """The thresholds of a round. A request's own goes before the server's, both before what costs say."""

    draft_confidence: float | None
    trust: Trust = field(default_factory=Trust)
    token_ms: float = 0.0  # expected milliseconds per token of the last plan
    round_ms: float = 0.0  # and of its round
    drafting: int = 0  # requests that draft in this round

    def planned(self, value: Value) -> None:
        """Note what the last plan expects of a round."""
        self.token_ms, self.round_ms = value.ms / value.tokens, value.ms

    def behind_offers(self, view: RequestView, k: int, cost: CostModel) -> int:
        """K of a request that runs alone and last had `k`: its ready guesses that pay, then as many of the model.

        A row pays if it raises the round's expected tokens by more than its milliseconds.
        """
        row, ms = cost.row_ms(KILO * view.context), self.round_ms
        tokens = chance = 1.0
        for count, offer in enumerate(view.offers):
            further = chance * offer.acceptance
            if further * ms <= row * tokens:
                return count
            chance, tokens, ms = further, tokens + further, ms + row
        ready = len(view.offers)
        return ready + k if not ready or chance >= self.go_on(view, cost) else ready

    def news(self, view: RequestView, cost: CostModel) -> tuple[float, int]:
        """The guesses that are ready and pay for their rows: expected tokens, the bonus token's too, and their number.

        As in a plan, a row must raise the request's own tokens by as large a share as it costs of all requests' time.
        """
        row, chance, tokens = self.row_worth(view, cost), 1.0, 1.0
        for count, offer in enumerate(view.offers):
            chance *= offer.acceptance
            if chance <= row * tokens:
                return tokens, count
            tokens += chance
        return tokens, len(view.offers)

    def keep(self, view: RequestView, cost: CostModel) -> float:
        """The chance at which a guess that is there pays.

        It costs a row of the target's pass and earns a token with the probability that it and all before it are
        accepted.
        """
        return self._threshold(view, self.row_worth(view, cost))

    def go_on(self, view: RequestView, cost: CostModel) -> float:
        """The same for the next guess: it costs a draft forward too, and is right with a chance of its own."""
        if self.token_ms <= 0.0:
            return self._threshold(view, 0.0)
        share = max(self.drafting, 1)
        step = cost.step_ms(float(share), KILO * view.context) / share
        return self._threshold(view, (self.row_worth(view, cost) + step / self.token_ms) / NEXT_RIGHT)

    def row_worth(self, view: RequestView, cost: CostModel) -> float:
        """What a row of the target's pass costs, in tokens."""
        return cost.row_ms(KILO * view.context) / self.token_ms if self.token_ms > 0.0 else 0.0

    def _threshold(self, view: RequestView, worth: float) -> float:
        given = confidence_of(view, self.draft_confidence)
        return min(LEAST_SURE, worth / self.trust.factor) if given is None else given

    def by_confidence(self, view: RequestView) -> bool:
        """Whether thresholds from costs end this request's chains: the draft tells how sure it is."""
        return self.trust.promised > 0.0 and confidence_of(view, self.draft_confidence) is None
