"""`sgl-spec bench all`: several benchmarks that need the pair, one after the other on one engine."""

from collections.abc import Callable
from typing import Annotated

import typer

from sgl_spec.bench.adaptive import adaptive
from sgl_spec.bench.advice import advice
from sgl_spec.bench.concurrency import load
from sgl_spec.bench.engine import engines_kept
from sgl_spec.bench.options import QuickFlag, SaveFlag
from sgl_spec.bench.prediction import prediction
from sgl_spec.bench.prefix import prefix
from sgl_spec.bench.speedup import speedup
from sgl_spec.bench.sweep import sweep
from sgl_spec.bench.worst_case import worst_case
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest

BENCHES: dict[str, Callable[..., None]] = {
    "speedup": speedup,
    "adaptive": adaptive,
    "prediction": prediction,
    "prefix": prefix,
    "worst-case": worst_case,
    "sweep": sweep,
    "load": load,
    "advice": advice,
}


def every(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(BENCHES)}; none: all.")] = None,
    quick: QuickFlag = False,
    save: SaveFlag = False,
) -> None:
    """Run benchmarks with their default sizes and start the pair once.

    Example: sgl-spec bench all speedup prefix --save
    """
    for name in names or ():
        if name not in BENCHES:
            raise ConfigError(f"there is no benchmark {name!r}{nearest(name, BENCHES)}: use {', '.join(BENCHES)}.")
    with engines_kept():
        for name in names or BENCHES:
            BENCHES[name](quick=quick, save=save)
