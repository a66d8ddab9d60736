"""The rows of a batch on Ray Data, on this machine or a cluster. The driver alone writes the output."""

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sgl_spec.batch.rows import Row
from sgl_spec.batch.runner import Done, RowRunner, run_rows
from sgl_spec.batch.settings import Settings
from sgl_spec.batch.usage import Usage
from sgl_spec.errors import ConfigError

LOCAL = "local"
BLOCK = 8  # rows that a Ray worker takes at once, and runs at a time


class Worker:
    """One Ray actor with its own connections."""

    def __init__(self, settings: Settings) -> None:
        self._run = RowRunner.connect(settings)

    def __call__(self, block: dict[str, Any]) -> dict[str, list[str]]:
        """Run a block of rows; rows and results are JSON texts in one column."""
        rows = iter([Row(**json.loads(text)) for text in block["row"]])
        done = [{"record": each.record, "usage": asdict(each.usage)} for each in run_rows(rows, self._run, BLOCK)]
        return {"done": [json.dumps(each, ensure_ascii=False) for each in done]}


def require_ray() -> None:
    """Raise ConfigError where Ray Data is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "ray needs the package ray[data], which is missing: pip install 'ray[data]', or leave --ray out."
        )


def run_on_ray(rows: Iterator[Row], settings: Settings, concurrency: int, address: str) -> Iterator[Done]:
    """Yield finished rows, block by block as Ray ends them."""
    import ray

    ray.init(address=None if address == LOCAL else address, ignore_reinit_error=True, log_to_driver=False)
    try:
        items = [{"row": json.dumps(asdict(row), ensure_ascii=False)} for row in rows]
        done = ray.data.from_items(items).map_batches(
            Worker,
            fn_constructor_args=(settings,),
            batch_size=BLOCK,
            concurrency=max(1, concurrency // BLOCK),
            num_cpus=0,
        )
        for item in done.iter_rows():
            result = json.loads(item["done"])
            yield Done(result["record"], Usage(**result["usage"]))
    finally:
        ray.shutdown()
