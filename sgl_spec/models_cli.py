"""`sgl-spec models`: the models that need no hub, fetched or listed."""

from typing import Annotated

import typer

from sgl_spec.console import JsonFlag, emit, people
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest

PAIRS = ("demo",)

models = typer.Typer(add_completion=False, rich_markup_mode="rich", help="The models that need no hub.")


@models.command()
def fetch(
    pair: Annotated[
        str, typer.Argument(help="demo: SmolLM2-135M-Instruct and the draft made for it.")
    ] = "demo",
    json_output: JsonFlag = False,
) -> None:
    """Fetch and convert a pair, once, and print its folders.

    \b
    Examples:
      sgl-spec models fetch demo
      sgl-spec models fetch demo --json
    """
    from sgl_spec.models import fetch_demo

    if pair not in PAIRS:
        raise ConfigError(f"pair={pair!r} is not known{nearest(pair, PAIRS)}.")
    target, draft = fetch_demo()
    people(json_output).print(f"target {target}\ndraft  {draft}")
    if json_output:
        emit({"target": str(target), "draft": str(draft)})


@models.command("list")
def list_models(json_output: JsonFlag = False) -> None:
    """List the folders that were made before.

    \b
    Examples:
      sgl-spec models list
    """
    from sgl_spec.models import cache_root

    root = cache_root() / "models"
    folders = (
        sorted(path for path in root.glob("*/") if not path.name.startswith(".")) if root.is_dir() else []
    )
    sizes = {
        folder: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in folders
    }
    out = people(json_output)
    for folder, size in sizes.items():
        out.print(f"{size / 1e6:8.1f} MB  {folder}")
    if not folders:
        out.print("Nothing is there yet: sgl-spec models fetch demo")
    if json_output:
        emit({"models": [{"folder": str(folder), "mb": size / 1e6} for folder, size in sizes.items()]})
