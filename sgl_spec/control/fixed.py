"""K tokens in every round, whatever happens: the baseline of benchmarks, and exact for tests."""

from __future__ import annotations

from sgl_spec.control.base import StepPolicy


class FixedController(StepPolicy):
    """`choose` returns `initial`, cut to each request's limits."""
