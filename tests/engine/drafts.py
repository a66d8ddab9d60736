"""Drafts that are made for tests: those of the worst-case benchmark."""

from sgl_spec.bench.drafts import noisy_draft, random_draft

__all__ = ["noisy_draft", "random_draft"]
