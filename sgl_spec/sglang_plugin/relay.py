"""What a batch carries from one round to the next: nothing, because the worker keeps its state per request."""

from dataclasses import dataclass
from typing import Any

from sglang.srt.speculative.spec_info import SpecInput, SpecInputType


@dataclass
class NothingToRelay(SpecInput):
    """Survives SGLang's filtering and merging of batches."""

    def __post_init__(self) -> None:
        super().__init__(SpecInputType.EAGLE_DRAFT)

    def filter_batch(self, new_indices: Any, new_indices_cpu: Any = None) -> None:
        """Requests leave the batch."""

    def merge_batch(self, spec_info: Any) -> None:
        """Batches are joined."""


NOTHING = NothingToRelay()
