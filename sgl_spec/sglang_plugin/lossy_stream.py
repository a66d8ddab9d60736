"""A server whose log's disk is full goes on: what it writes to its standard streams is lost instead of raised.

SGLang's scheduler writes a progress bar to standard error while it loads weights and dies of a failing write.
"""

import errno
import sys
from typing import Any, TextIO

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class LossyStream:
    """`stream`, but for writes that fail because there is no room; other failures are raised as before."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text` or lose it."""
        try:
            return self._stream.write(text)
        except OSError as error:
            return _lost(error, len(text))

    def flush(self) -> None:
        """Flush, or keep what does not fit for the next time."""
        try:
            self._stream.flush()
        except OSError as error:
            _lost(error, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def install() -> None:
    """Make this process's standard output and error lossy. For the processes of a server, never for a program's."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LossyStream):
            setattr(sys, name, LossyStream(stream))


def _lost(error: OSError, size: int) -> int:
    if error.errno not in FULL:
        raise error
    return size
