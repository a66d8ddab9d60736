"""What a forked child inherits and a spawned one would not: undone here."""

import faulthandler
import gc
import io
import logging
import os
import signal
import sys
import types
import warnings
from typing import Any

from sgl_spec.sglang_plugin import lossy_stream

_abandoned: list[Any] = []  # the parent's streams: collecting them would flush what the parent still holds


def leave_parent(keep: set[int], torch_threads: int) -> None:
    """Give this forked child the state of a fresh interpreter, but for its modules.

    `keep` are the file descriptors that stay; `torch_threads` is torch's thread count when it was loaded.
    """
    release_descriptors(keep)
    reset_signals()
    renew_streams()
    lossy_stream.install()
    reset_logging()
    reset_warnings()
    reset_runtime(torch_threads)


def release_descriptors(keep: set[int]) -> None:
    """Point all other descriptors at the null device.

    They are not closed: objects of the parent still own the numbers, and would close a later file.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (numbers, not paths)
        fd = int(name)
        if fd not in keep and fd != null:
            try:
                os.fstat(fd)
            except OSError:  # the listing's own descriptor
                continue
            os.dup2(null, fd, inheritable=False)
    os.close(null)


def reset_signals() -> None:
    """Restore default handlers, as an exec does; ignored signals stay ignored, and interrupts are the parent's.

    A terminal sends an interrupt to all processes: the parent lets answers end, then ends its children.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if faulthandler.is_enabled():
        faulthandler.disable()


def renew_streams() -> None:
    """Open standard output and error anew on descriptors 1 and 2."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, f"__{name}__")
        _abandoned.extend([old, getattr(sys, name)])
        stream = io.TextIOWrapper(
            open(fd, "wb", closefd=False),  # noqa: SIM115
            encoding=getattr(old, "encoding", None) or "utf-8",
            errors="backslashreplace" if fd == 2 else "surrogateescape",
            line_buffering=fd == 2 or os.isatty(fd),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def reset_logging() -> None:
    """Drop the root logger's handlers; point the libraries' own at the new streams."""
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    for logger in root.manager.loggerDict.values():
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.stream = sys.stderr


def reset_warnings() -> None:
    """Restore Python's default filters and the command line's."""
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]


def reset_runtime(torch_threads: int) -> None:
    """Forget the parent's main module, event loop, exit functions, random state and thread count."""
    import asyncio
    import atexit

    import numpy as np
    import torch

    main = types.ModuleType("__main__")
    main.__spec__ = None
    sys.modules["__main__"] = main
    asyncio.set_event_loop_policy(type(asyncio.get_event_loop_policy())())
    atexit._clear()
    np.random.seed()
    if torch.get_num_threads() != torch_threads:
        torch.set_num_threads(torch_threads)
    gc.freeze()
