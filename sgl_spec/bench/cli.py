"""`sgl-spec bench`: finds the benchmark and runs it."""

import typer

from sgl_spec.bench.adaptive import adaptive
from sgl_spec.bench.speedup import speedup
from sgl_spec.bench.worst_case import worst_case

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True, help=__doc__)
for _name, _command in {
    "speedup": speedup,
    "adaptive": adaptive,
    "worst-case": worst_case,
}.items():
    app.command(_name)(_command)
