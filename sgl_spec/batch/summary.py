"""What a batch did: rows, tokens, acceptance, cost."""

from dataclasses import dataclass, field
from typing import Any

from sgl_spec.batch.usage import Usage
from sgl_spec.console import table

MILLION = 1_000_000


@dataclass(slots=True)
class Summary:
    """Rows of the whole output, and what this run used. Prices are per million tokens."""

    rows: int
    done_before: int
    input_price: float = 0.0
    output_price: float = 0.0
    done: int = 0
    failed: int = 0  # error records in the output, earlier runs included
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)

    @property
    def cost(self) -> float | None:
        """Price of this run's tokens; None where no price was given."""
        if not (self.input_price or self.output_price):
            return None
        tokens = self.usage.prompt_tokens * self.input_price + self.usage.completion_tokens * self.output_price
        return tokens / MILLION

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        per_second = self.usage.completion_tokens / self.seconds if self.seconds > 0 else None
        return {
            "rows": self.rows,
            "done_before": self.done_before,
            "done": self.done,
            "failed": self.failed,
            "undone": self.rows - self.done_before - self.done,
            "seconds": round(self.seconds, 3),
            "completion_tokens_per_s": per_second,
            "cost": self.cost,
            "usage": self.usage.as_dict(),
        }

    def table(self) -> Any:
        """Return the summary for people."""
        usage, seconds = self.usage, max(self.seconds, 1e-9)
        lines: list[tuple[str, object]] = [
            ("rows", self.rows),
            ("done in this run", self.done),
            ("done before", self.done_before),
            ("errors in the output", self.failed),
            ("seconds", f"{self.seconds:.1f}"),
            ("prompt tokens", f"{usage.prompt_tokens} ({usage.cached_tokens} from the prefix cache)"),
            (
                "completion tokens",
                f"{usage.completion_tokens} ({usage.completion_tokens / seconds:.1f} per second)",
            ),
        ]
        if usage.draft_acceptance_rate is not None:
            lines.append(("acceptance", f"{usage.draft_acceptance_rate:.3f} ({usage.accepted} of {usage.proposed})"))
        if usage.mean_acceptance_length is not None:
            lines.append(("tokens per pass of the target", f"{usage.mean_acceptance_length:.2f}"))
        if self.cost is not None:
            lines.append(("cost", f"{self.cost:.4f}"))
        return table("Batch", ("", "this run"), lines)
