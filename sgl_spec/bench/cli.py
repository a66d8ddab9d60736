"""`sgl-spec bench`: finds the benchmark and runs it."""

from collections.abc import Callable

import typer

from sgl_spec.bench.adaptive import adaptive
from sgl_spec.bench.every import every
from sgl_spec.bench.overhead import overhead
from sgl_spec.bench.prediction import prediction
from sgl_spec.bench.prefix import prefix
from sgl_spec.bench.report import report
from sgl_spec.bench.speedup import speedup
from sgl_spec.bench.verify_cost import verify_cost
from sgl_spec.bench.worst_case import worst_case

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True, help=__doc__)
_COMMANDS: dict[str, Callable[..., None]] = {
    "all": every,
    "speedup": speedup,
    "adaptive": adaptive,
    "worst-case": worst_case,
    "prediction": prediction,
    "prefix": prefix,
    "verify-cost": verify_cost,
    "overhead": overhead,
    "report": report,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
