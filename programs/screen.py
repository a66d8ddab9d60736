"""Streamed text on a terminal, with one line of figures under it; plain text where there is no terminal."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text


class Screen:
    """Finished lines are printed for good; only the line that still grows and the figures are redrawn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = Text()
        self._figures = ""
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            if self._line:
                self._console.print(self._line)
        else:
            self._console.print()

    def add(self, text: str, style: str = "default", figures: str = "") -> None:
        """Append `text`; `figures` replace the line under it."""
        if not self._live:
            self._console.print(Text(text), end="")
            return
        *lines, rest = text.split("\n")
        for line in lines:
            self._line.append(line, style)
            self._console.print(self._line)
            self._line = Text()
        self._line.append(rest, style)
        self._figures = figures or self._figures
        self._live.update(Group(self._line, Text(self._figures, style="dim")))
