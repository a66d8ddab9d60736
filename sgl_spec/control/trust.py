"""How far a draft model's confidence can be believed: accepted guesses over those that it promised, learnt online.

The product of a draft's largest probabilities is the chance that its guesses are right only if the draft is
calibrated. A copy of the target is always right, sure or not; a small draft may promise too much. Thresholds on
the product are divided by the factor.
"""

from __future__ import annotations

from dataclasses import dataclass

KEEP = 0.995  # what a round leaves of older evidence
PRIOR = 4.0  # guesses that a factor of 1 is worth
LEAST, MOST = 0.5, 8.0


@dataclass(slots=True)
class Trust:
    """Faded sums of promised and accepted guesses."""

    promised: float = 0.0
    kept: float = 0.0

    @property
    def factor(self) -> float:
        """Above 1: guesses are right more often than the draft says."""
        return min(max((self.kept + PRIOR) / (self.promised + PRIOR), LEAST), MOST)

    def learn(self, promised: float, kept: int) -> None:
        """Take in one request's round: so many guesses were promised (0: not told) and accepted."""
        if promised > 0.0:
            self.promised = KEEP * self.promised + promised
            self.kept = KEEP * self.kept + kept
