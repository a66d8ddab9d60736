"""`sgl-spec batch`: a JSONL file through a program, with resume, one record per row, a summary."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sgl_spec.batch.interrupt import first_interrupt
from sgl_spec.batch.results import Results
from sgl_spec.batch.rows import Row, digests, read_rows
from sgl_spec.batch.settings import Settings
from sgl_spec.batch.summary import Summary
from sgl_spec.console import JsonFlag, emit, people
from sgl_spec.errors import ConfigError

DEFAULT_PROGRAM = "chat"


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="One JSON object per line.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="One record per row.")],
    program: Annotated[
        str | None,
        typer.Option(
            help="chat, code, summarization, openai or my_module:function; left out: openai for an "
            "OpenAI batch file, else chat."
        ),
    ] = None,
    url: Annotated[list[str] | None, typer.Option(help="Server that runs already; repeat it for several.")] = None,
    model_path: Annotated[str | None, typer.Option(help="Target of an own server; left out: the demo pair.")] = None,
    draft_model_path: Annotated[str | None, typer.Option(help="Draft model of the own server.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="SGL_SPEC_API_KEY", help="API key of the servers.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Rows at a time.")] = 8,
    ordered: Annotated[
        bool, typer.Option("--ordered/--unordered", help="Sort the finished output into the input's order.")
    ] = True,
    retries: Annotated[int, typer.Option(min=0, max=100, help="Further attempts after a lost connection or 5xx.")] = 4,
    retry_errors: Annotated[bool, typer.Option(help="Run rows again that have an error record.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Drop what OUT.jsonl holds and begin again.")] = False,
    stats: Annotated[bool, typer.Option(help="Add each row's speculation statistics to its record.")] = False,
    router: Annotated[
        int | None,
        typer.Option(min=1, help="Put sglang-router over the given servers, or over this many own ones."),
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Run on Ray Data: 'local' or a cluster's address.")] = None,
    input_price: Annotated[float, typer.Option(min=0.0, help="Price per million prompt tokens.")] = 0.0,
    output_price: Annotated[float, typer.Option(min=0.0, help="Price per million completion tokens.")] = 0.0,
    json_output: JsonFlag = False,
) -> int:
    """Run every row of a file through a program. After a kill the same command goes on where it was.

    Each row becomes one record, an error record if it fails; status 1 says that there are such records.

    \b
    Examples:
      sgl-spec batch chat.jsonl -o answers.jsonl --url http://127.0.0.1:30000
      sgl-spec batch code.jsonl -o done.jsonl --program code --url http://a:30000 --url http://b:30000
      sgl-spec batch rows.jsonl -o out.jsonl --program my_module:my_function --router 2
    """  # fmt: skip
    known = digests(source)
    name = _program(source, program)
    _check_paths(source, output)
    if ray:
        from sgl_spec.batch.on_ray import require_ray

        require_ray()
    if overwrite:
        output.unlink(missing_ok=True)
    with ExitStack() as stack:
        results = stack.enter_context(Results(output, known))
        if retry_errors:
            results.drop_failed()
        summary = Summary(len(known), len(results.places), input_price, output_price)
        rows = (row for row in read_rows(source) if row.index not in results.places)
        if len(results.places) < len(known):
            urls = _servers(stack, url, model_path, draft_model_path, router)
            settings = Settings(name, tuple(urls), api_key, retries, stats)
            stop = stack.enter_context(first_interrupt())
            finished = _finished(settings, concurrency, ray, stop)
            _run(finished(rows), results, summary, people(json_output=True))
        if ordered:
            results.sort()
        summary.failed = results.failed
    out = people(json_output)
    out.print(summary.table())
    if summary.failed:
        out.print(f"{summary.failed} rows have an error record in {output}; --retry-errors runs them again.")
    if json_output:
        emit(summary.as_dict())
    return 1 if summary.failed else 0


def _program(source: Path, program: str | None) -> str:
    """Return the program's name, by the form of the first row where none is given."""
    first = next(read_rows(source), None)
    if first is None or not first.is_openai:
        return program or DEFAULT_PROGRAM
    if program not in (None, "openai"):
        raise ConfigError(f"program={program} and an OpenAI batch file exclude each other: its rows say what to ask.")
    return "openai"


def _check_paths(source: Path, output: Path) -> None:
    if not output.parent.is_dir():
        raise ConfigError(f"output={output} lies in no existing folder: make the folder or name another file.")
    if output.exists() and source.samefile(output):
        raise ConfigError(f"output={output} is the input: name another file.")


def _servers(
    stack: ExitStack,
    url: list[str] | None,
    model_path: str | None,
    draft_model_path: str | None,
    router: int | None,
) -> list[str]:
    from sgl_spec.batch import servers

    if router:
        servers.require_router()
    if url and model_path:
        raise ConfigError(f"url={url[0]} and model_path={model_path} exclude each other: the server has its model.")
    urls = list(url or ())
    if not urls:
        from programs.engines import pair

        target, draft = pair(model_path, draft_model_path)
        urls = stack.enter_context(servers.own_servers(router or 1, target, draft))
    return [stack.enter_context(servers.router(urls))] if router else urls


def _finished(
    settings: Settings, concurrency: int, ray: str | None, stop: Event
) -> Callable[[Iterator[Row]], Iterator[Any]]:
    """Return what turns rows into finished ones: threads here, or Ray."""
    if ray:
        from sgl_spec.batch.on_ray import run_on_ray

        return lambda rows: run_on_ray(rows, settings, concurrency, ray, stop)
    from sgl_spec.batch.runner import RowRunner, run_rows

    run = RowRunner.connect(settings)
    return lambda rows: run_rows(rows, run, concurrency, stop)


def _run(finished: Iterator[Any], results: Results, summary: Summary, console: Console) -> None:
    """Append every finished row to the output and draw the progress. Mutates `results` and `summary`."""
    began = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True), console=console,
    )  # fmt: skip
    with bar:
        task = bar.add_task("rows", total=summary.rows, completed=summary.done_before)
        try:
            for done in finished:
                results.append(done.record)
                summary.done += 1
                summary.usage.add(done.usage)
                bar.update(task, advance=1, description=_described(results, summary))
        finally:
            summary.seconds = time.monotonic() - began


def _described(results: Results, summary: Summary) -> str:
    rate = summary.usage.draft_acceptance_rate
    parts = ["rows"]
    if results.failed:
        parts.append(f"{results.failed} failed")
    if rate is not None:
        parts.append(f"acceptance {rate:.2f}")
    return ", ".join(parts)
