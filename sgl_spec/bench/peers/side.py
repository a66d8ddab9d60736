"""What takes part in a comparison: ours, and a peer in a process of its own. All are asked in the same way."""

import json
import os
import select
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from sgl_spec.errors import EngineError
from sgl_spec.orphans import stop_group

START_S = 900.0
ANSWER_S = 600.0
ROOT = Path(__file__).parents[3]


class Call(NamedTuple):
    """One answered call: generated tokens, seconds from sending to the last token, and the texts."""

    tokens: int
    seconds: float
    texts: list[str]


class Side(Protocol):
    """An engine with its models loaded."""

    @property
    def engine(self) -> str:
        """Its name, with the version."""
        ...

    @property
    def modes(self) -> dict[str, list[int]]:
        """With how many requests at once each mode can be asked."""
        ...

    def ask(self, mode: str, texts: list[str], tokens: int) -> Call:
        """Answers of `tokens` tokens each, greedy, end of sequence ignored; raises EngineError."""
        ...


class PeerProcess:
    """A script of this folder in an environment of its own, started with a job (`sgl_spec.bench.peers.wire`).

    Raises EngineError with the last line of what the engine said if it ends or does not answer in time.
    """

    def __init__(self, name: str, python: Path, script: str, job: dict[str, Any], environment: dict[str, str]) -> None:
        self.name = name
        self._log = tempfile.NamedTemporaryFile(prefix=f"sgl-spec-{name}-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).parent / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )
        try:
            ready = self._question(job, START_S)
        except BaseException:
            self.stop()
            raise
        self.engine: str = ready["engine"]
        self.modes: dict[str, list[int]] = ready["modes"]
        self.failed: dict[str, str] = ready["failed"]

    def ask(self, mode: str, texts: list[str], tokens: int) -> Call:
        """See `Side.ask`."""
        return Call(**self._question({"mode": mode, "texts": texts, "tokens": tokens}, ANSWER_S))

    def stop(self) -> None:
        """End the process with all that it started."""
        stop_group(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a question that was never read
                    pipe.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _question(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
            ready, _, _ = select.select([stdout], [], [], seconds)
        except BrokenPipeError:
            ready = [stdout]
        if not ready:
            raise EngineError(f"{self.name} did not answer within {seconds:.0f} s.")
        line = stdout.readline()
        if not line:
            said = Path(self._log.name).read_text(errors="replace").strip().splitlines()
            raise EngineError(f"{self.name} failed: {(said or ['it said nothing'])[-1][:300]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name} failed: {answer['error'][:300]}")
        return answer
