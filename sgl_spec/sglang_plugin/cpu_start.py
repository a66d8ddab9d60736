"""Start of the engine on a machine without an accelerator: pay SGLang's imports once, not three times.

SGLang spawns its scheduler and its detokenizer as fresh interpreters because CUDA does not survive a fork.
Without an accelerator nothing forbids it: a fork of the main process has all modules already. The child
is then brought to the state of a spawned one (`leave_parent`) and runs the spawn protocol of
``multiprocessing``, so that what SGLang sees is the same: a direct child of the main process, the main
module imported as ``__mp_main__``, no file descriptor, signal handler or log handler of the parent.

A fork is only right in a process of one thread (that of `sgl_spec.orphans` only waits and does not count)
whose environment is still the one that its libraries were loaded with. `obstacle` and a look at the
threads after the fork decide; otherwise the stock spawn runs.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
from multiprocessing import popen_spawn_posix, resource_tracker, spawn, util
from multiprocessing.context import SpawnProcess, reduction, set_spawning_popen
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from sgl_spec.errors import UpstreamError
from sgl_spec.orphans import WATCH
from sgl_spec.sglang_plugin import shared_tokenizer
from sgl_spec.sglang_plugin.child_state import leave_parent
from sgl_spec.sglang_plugin.import_hooks import after_import

logger = logging.getLogger(__name__)

ENGINE_MODULE = "sglang.srt.entrypoints.engine"
READ_AT_LOAD = ("LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "ATEN_", "PYTHON", "SGLANG_")
"""Prefixes of variables that libraries and SGLang read once, when they are loaded."""
READ_AT_RUN_TIME = frozenset(
    {
        "SGLANG_RUN_ID",
        "SGLANG_CPU_OMP_THREADS_BIND",
        "SGLANG_DISABLE_OUTLINES_DISK_CACHE",
        "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
        "SGLANG_ENABLE_TORCH_COMPILE",
        "SGLANG_HTTP_SERVER_APP_PATH",
        "SGLANG_MAMBA_SSM_DTYPE",
        "SGLANG_USE_CUDA_IPC_TRANSPORT",
    }
)
"""Variables of these prefixes that are read when used on a CPU; SGLang sets them from its arguments."""
MAX_RESIDENT = 2 << 30
"""Bytes: a fork would keep a larger parent's memory alive after the parent frees it."""
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)
_at_load: dict[str, str] = {}
_threads_at_load = [1]


def apply() -> None:
    """Let SGLang's engine fork its processes; called in ``import sglang`` if there is no accelerator."""
    import torch

    if sys.platform.startswith("linux"):
        _threads_at_load[0] = torch.get_num_threads()
        after_import(ENGINE_MODULE, install)


def install(engine: ModuleType) -> None:
    """Put our `Process` where SGLang's engine module takes ``mp.Process`` from."""
    if getattr(engine, "mp", None) is not multiprocessing:
        raise UpstreamError(
            f"{ENGINE_MODULE} does not start its processes through its name `mp`: install sglang==0.5.23"
        )
    _at_load.update(variables_read_at_load())
    engine.mp = EngineMultiprocessing()


class EngineMultiprocessing:
    """The module ``multiprocessing`` with `EngineProcess` as its ``Process``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)

    @property
    def Process(self) -> type[SpawnProcess]:  # noqa: N802 (multiprocessing's name)
        """What the engine starts: forked where that is right, else spawned."""
        return EngineProcess


class EngineProcess(SpawnProcess):
    """A spawned process in all respects but the way it comes to its modules."""

    @staticmethod
    def _Popen(process_obj: Any) -> popen_spawn_posix.Popen:  # noqa: N802 (multiprocessing's name)
        return ForkPopen(process_obj)


def variables_read_at_load() -> dict[str, str]:
    """Return the environment variables that matter only before their library is loaded."""
    return {k: v for k, v in os.environ.items() if k.startswith(READ_AT_LOAD) and k not in READ_AT_RUN_TIME}


def thread_count() -> int:
    """Return the operating system's count of this process's threads."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 (hot: one call, no Path objects)


def watch_threads() -> int:
    """Return how many threads of `sgl_spec.orphans` run: they hold no lock, so a fork may ignore them."""
    import threading

    return sum(thread.name == WATCH for thread in threading.enumerate())


def resident_bytes() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def obstacle() -> str | None:
    """Return why this process must not fork an engine process, in words, or None."""
    import threading

    changed = sorted(set(_at_load.items()) ^ set(variables_read_at_load().items()))
    if changed:
        return f"{changed[0][0]} was changed after the import of sglang"
    if os.fsdecode(spawn.get_executable()) != sys.executable:
        return "SGLang wants another interpreter for it"
    if threading.active_count() > 1 + watch_threads():
        return "the main process has other threads"
    if resident_bytes() > MAX_RESIDENT:
        return f"the main process holds more than {MAX_RESIDENT >> 30} GiB"
    return None


class ForkPopen(popen_spawn_posix.Popen):
    """Start a process of the spawn protocol by a fork, or by a spawn if there is an `obstacle`."""

    def _launch(self, process_obj: Any) -> None:
        reason = obstacle()
        if reason is None:
            shared_tokenizer.build_for(process_obj._args)
            if self._fork(process_obj):
                return
        reason = reason or "a library of the main process has threads"
        logger.info("%s imports its modules anew (a fork would be faster): %s.", process_obj.name, reason)
        self._fds: list[int] = []
        super()._launch(process_obj)

    def _fork(self, process_obj: Any) -> bool:
        """Fork, hand `process_obj` over; return False, with nothing started, if threads stood in the way."""
        tracker_fd = resource_tracker.getfd()
        message = self._pickled(process_obj)
        parent_r, child_w = os.pipe()
        child_r, parent_w = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            keep = {0, 1, 2, tracker_fd, child_r, child_w, *self._fds}
            run_child(parent, keep, child_r, tracker_fd)
        os.close(child_r)
        os.close(child_w)
        # OpenBLAS ends its threads before a fork: only now those of other libraries can be told.
        if thread_count() > 1 + watch_threads():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(parent_r)
            os.close(parent_w)
            return False
        self.pid, self.sentinel = pid, parent_r
        self.finalizer = util.Finalize(self, util.close_fds, [parent_r, parent_w])
        with open(parent_w, "wb", closefd=False) as pipe:
            pipe.write(message)
        return True

    def _pickled(self, process_obj: Any) -> bytes:
        """Return what the spawn protocol sends; fills `_fds` with the descriptors that it mentions."""
        preparation = spawn.get_preparation_data(process_obj._name)
        set_spawning_popen(self)
        try:
            parts = (reduction.ForkingPickler.dumps(part) for part in (preparation, process_obj))
            return b"".join(bytes(part) for part in parts)
        finally:
            set_spawning_popen(None)


def run_child(parent: int, keep: set[int], pipe: int, tracker_fd: int) -> NoReturn:
    """Run the spawn protocol from `pipe` in a freshly forked child, then end the process."""
    import atexit
    import traceback

    code = 1
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        leave_parent(keep, _threads_at_load[0])
        resource_tracker._resource_tracker._fd = tracker_fd
        code = spawn._main(pipe, os.dup(pipe))
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        util._flush_std_streams()
        os._exit(code or 0)
