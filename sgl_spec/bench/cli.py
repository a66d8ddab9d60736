"""`sgl-spec bench`: finds the benchmark and runs it."""

from collections.abc import Callable

import typer

from sgl_spec.bench.every import BENCHES, every
from sgl_spec.bench.overhead import overhead
from sgl_spec.bench.peers.command import peers
from sgl_spec.bench.report import report
from sgl_spec.bench.verify_cost import verify_cost

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True, help=__doc__)
_COMMANDS: dict[str, Callable[..., None]] = {
    "all": every,
    **BENCHES,
    "verify-cost": verify_cost,
    "overhead": overhead,
    "peers": peers,
    "report": report,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
