"""A model without weights whose law depends on every token that its KV slots hold: a wrong slot is heard."""

import zlib
from types import SimpleNamespace
from typing import Any

import torch

from sgl_spec.sglang_plugin.draft_model import DraftModel
from sgl_spec.sglang_plugin.passes import Slots, Span


def toy_logits(text: list[int], vocabulary: int, salt: int) -> torch.Tensor:
    """Logits [V] after a text."""
    seed = zlib.crc32(bytes(str((salt, *text)), "ascii"))
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


class ToyPass:
    """Reads spans like `StockPass`: tokens go to slots, and the text is what the slots of the row hold."""

    def __init__(self, table: torch.Tensor, slots: int, vocabulary: int, salt: int, columns: Any = None) -> None:
        self.req_to_token = table
        self.tokens = [-1] * slots
        self.vocabulary, self.salt, self.columns = vocabulary, salt, columns
        self.read = 0  # positions

    def logits(self, spans: list[Span], every_row: bool) -> torch.Tensor:
        rows = []
        for span in spans:
            line = self.req_to_token[span.pool_row].tolist()
            for j, token in enumerate(span.tokens):
                self.tokens[line[span.start + j]] = token
                self.read += 1
                text = [self.tokens[slot] for slot in line[: span.start + j + 1]]
                rows.append(toy_logits(text, self.vocabulary, self.salt))
            if not every_row:
                rows[-len(span.tokens) :] = rows[-1:]
        logits = torch.stack(rows)
        return logits if self.columns is None else logits[:, self.columns]

    def held(self, pool_row: int, start: int, end: int) -> Slots:
        return self.req_to_token[pool_row, start:end].numpy()


class ToyModel:
    """What `PyramidDraft` and `EngineLevel` ask of a `DraftModel`."""

    def __init__(self, table: torch.Tensor, slots: int, vocabulary: int, salt: int) -> None:
        self.forward = ToyPass(table, slots, vocabulary, salt)
        self.hot_ids: torch.Tensor | None = None
        self.drafted = bytearray(slots)
        self.draft_runner = SimpleNamespace(model=torch.nn.Linear(2, 2 + salt))

    read_until, mark, forget = DraftModel.read_until, DraftModel.mark, DraftModel.forget
