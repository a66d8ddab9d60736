"""What requests used: tokens, and how drafting went. Sums over the requests of a turn, a row, a batch."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from sgl_spec.stats import acceptance_length, acceptance_rate


@dataclass(slots=True)
class Usage:
    """Counts of ended requests; `rounds` are passes of the target, the last two count drafted tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Self:
        """Return the counts of one request from its ``meta_info``."""
        spec = meta.get("sgl_spec") or {}
        return cls(
            requests=1,
            prompt_tokens=meta.get("prompt_tokens") or 0,
            completion_tokens=meta.get("completion_tokens") or 0,
            cached_tokens=meta.get("cached_tokens") or 0,
            rounds=spec.get("num_spec_steps", 0) + spec.get("num_plain_steps", 0),
            proposed=spec.get("num_draft_tokens", 0),
            accepted=spec.get("num_accepted_draft_tokens", 0),
        )

    def add(self, other: "Usage") -> None:
        """Add `other` to these counts."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def draft_acceptance_rate(self) -> float | None:
        """accepted / proposed; None where nothing was proposed."""
        return acceptance_rate(self.accepted, self.proposed)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per pass of the target, the bonus token included; None without a draft."""
        return acceptance_length(self.accepted, self.rounds)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **asdict(self),
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
        }


def total(metas: list[dict[str, Any]] | dict[str, Any]) -> Usage:
    """Return the sum over one request's ``meta_info``, or of n samples (their prompt counts once)."""
    usage = Usage()
    for position, meta in enumerate(metas if isinstance(metas, list) else [metas]):
        one = Usage.of(meta)
        if position:
            one.requests = one.prompt_tokens = one.cached_tokens = 0
        usage.add(one)
    return usage
