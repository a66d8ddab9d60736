"""What a benchmark gives: one ratio with its spread, the rows behind it, and where it was measured."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sgl_spec.bench.provenance import Provenance
from sgl_spec.errors import ConfigError

RESULTS = Path("benchmarks") / "results"


class Result(BaseModel):
    """One benchmark. `meaning` says what `ratio` divides; `spread` is its 95% interval over the prompts."""

    name: str
    meaning: str
    ratio: float
    spread: tuple[float, float]
    rows: list[dict[str, Any]]
    provenance: Provenance

    def save(self, folder: Path = RESULTS) -> Path:
        """Write ``<folder>/<name>.json`` and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return path


def read_results(folder: Path = RESULTS) -> list[Result]:
    """The saved results of a folder, by name; raises ConfigError for a file that is none."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(Result.model_validate_json(path.read_text(encoding="utf-8")))
        except (ValidationError, UnicodeDecodeError) as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"{path} is no benchmark result ({first}): measure again with --save.") from None
    if not found:
        raise ConfigError(f"{folder} holds no results: run a benchmark with --save first.")
    return found
