"""The options that all programs share: where the requests go, and whether they may be drafted."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

import sgl_spec
from programs.engines import Engine, connected, request_options


@dataclass(frozen=True)
class Place:
    """Where a program's requests go: each field is one command-line option of every program."""

    engine: Annotated[Engine, typer.Option(help="Who generates.")] = Engine.sglang
    url: Annotated[str | None, typer.Option(help="Server that runs already, e.g. http://127.0.0.1:30000.")] = None
    model_path: Annotated[
        str | None,
        typer.Option(
            help="Target to start a Runtime with; left out: the demo pair. With --engine vllm or openai the "
            "model's name on that server."
        ),
    ] = None
    draft_model_path: Annotated[
        str | None,
        typer.Option(
            help="Draft model of the target; with --engine openai the name of the model that writes the prediction."
        ),
    ] = None
    draft_url: Annotated[str | None, typer.Option(help="With --engine openai: server of the drafting model.")] = None
    price: Annotated[str, typer.Option(help="With --engine openai: the target's price per million tokens, IN/OUT.")] = (
        ""
    )
    draft_price: Annotated[str, typer.Option(help="With --engine openai: the drafting model's price, IN/OUT.")] = ""
    api_key: Annotated[str | None, typer.Option(envvar="SGL_SPEC_API_KEY", help="API key of the server.")] = None
    speculate: Annotated[bool, typer.Option("--speculate/--no-speculate", help="Whether requests may be drafted.")] = (
        True
    )
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option("--num-speculative-tokens", "-k", min=0, help="Most drafted tokens per round for these requests."),
    ] = None

    @contextmanager
    def connect(self, program: str) -> Iterator[Any]:
        """Yield the backend with the request options of `program`; what was started for it is stopped afterwards."""
        with (
            connected(
                engine=self.engine,
                url=self.url,
                model_path=self.model_path,
                draft_model_path=self.draft_model_path,
                draft_url=self.draft_url,
                api_key=self.api_key,
                price=self.price,
                draft_price=self.draft_price,
            ) as backend,
            sgl_spec.options(**request_options(program, self.speculate, self.num_speculative_tokens)),
        ):
            yield backend


def takes_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter `place` of a typer command by one option for each field of `Place`."""
    hints = get_type_hints(Place, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(Place)
    ]

    @wraps(command)
    def with_options(*args: Any, **given: Any) -> Any:
        place = Place(**{parameter.name: given.pop(parameter.name) for parameter in shared})
        return command(*args, place=place, **given)

    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "place"]
    tail = [parameter for parameter in own if parameter.name == "json_output"]
    both = [*(parameter for parameter in own if parameter not in tail), *shared, *tail]
    with_options.__signature__ = signature.replace(parameters=both)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in both}
    return with_options
