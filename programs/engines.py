"""What a program runs on: a server at an address, an own Runtime, Transformers, another engine."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from sgl_spec.console import people
from sgl_spec.errors import ConfigError

# The error itself reaches the program (programs.state): SGLang's warning would print its traceback once more.
warnings.filterwarnings("ignore", message="Error in stream_executor")


class Engine(StrEnum):
    """Who generates; `vllm` and `openai` need --url and --model-path (the model's name there)."""

    sglang = "sglang"
    transformers = "transformers"
    vllm = "vllm"
    openai = "openai"


@contextmanager
def connected(
    *,
    engine: Engine = Engine.sglang,
    url: str | None = None,
    model_path: str | None = None,
    draft_model_path: str | None = None,
    draft_url: str | None = None,
    api_key: str | None = None,
    price: str = "",
    draft_price: str = "",
) -> Iterator[Any]:
    """Yield the front-end backend of the chosen engine; what was started for it is stopped afterwards.

    Raises ConfigError for options that do not go together.
    """
    _check(engine, url, model_path, draft_url)
    if engine is Engine.transformers:
        from programs.engine_transformers import TransformersBackend

        target, draft = pair(model_path, draft_model_path)
        yield TransformersBackend(target, draft)
    elif engine is Engine.vllm:
        from programs.engine_vllm import CompletionsBackend

        yield CompletionsBackend(str(url), str(model_path), api_key)
    elif engine is Engine.openai:
        from programs.engine_openai import ChatBackend, Model

        draft = (
            Model(draft_url or str(url), draft_model_path, api_key, *prices("draft_price", draft_price))
            if draft_model_path
            else None
        )
        yield ChatBackend(Model(str(url), str(model_path), api_key, *prices("price", price)), draft)
    else:
        yield from _sglang(url, model_path, draft_model_path, api_key)


def prices(option: str, text: str) -> tuple[float, float]:
    """Return the prices of "IN/OUT", (0, 0) for an empty text; raises ConfigError."""
    try:
        given = [float(part) for part in (text or "0/0").split("/")]
    except ValueError:
        given = []
    if len(given) != 2 or min(given) < 0:
        raise ConfigError(f"{option}={text!r} is no price: give two numbers per million tokens, as 2.5/10.")
    return given[0], given[1]


def _check(engine: Engine, url: str | None, model_path: str | None, draft_url: str | None) -> None:
    remote = engine in (Engine.vllm, Engine.openai)
    if remote and not (url and model_path):
        missing = "--url" if not url else "--model-path"
        raise ConfigError(f"engine={engine} needs {missing}: name the server's address and the model it serves.")
    if engine is Engine.transformers and url:
        raise ConfigError(f"url={url} and engine=transformers exclude each other: this engine runs in this process.")
    if draft_url and engine is not Engine.openai:
        raise ConfigError(f"draft_url={draft_url} is for engine=openai: a server of ours takes its draft at its start.")
    if engine is Engine.sglang and url and model_path:
        raise ConfigError(f"url={url} and model_path={model_path} exclude each other: the server has its model.")


def _sglang(
    url: str | None, model_path: str | None, draft_model_path: str | None, api_key: str | None
) -> Iterator[Any]:
    from sgl_spec.batch.endpoint import CountingEndpoint

    if url:
        yield CountingEndpoint(url, api_key)
        return
    from sgl_spec.runtime import Runtime

    target, draft = pair(model_path, draft_model_path)
    people(json_output=True).print(f"starting a server with {target}" + (f" and the draft {draft}" if draft else ""))
    with Runtime(target, draft) as runtime:
        yield CountingEndpoint(runtime.url)


def pair(model_path: str | None, draft_model_path: str | None) -> tuple[str, str | None]:
    """Return the models as given, or the demo pair where no target is named."""
    if model_path:
        return model_path, draft_model_path
    if draft_model_path:
        raise ConfigError(f"draft_model_path={draft_model_path} needs model_path: a draft belongs to one target.")
    from sgl_spec.models import fetch_demo

    target, draft = fetch_demo()
    return str(target), str(draft)


def request_options(program: str, speculate: bool, count: int | None, **more: Any) -> dict[str, Any]:
    """Return what goes into `sgl_spec.options` for a program's requests."""
    given = {"program": program, "num_speculative_tokens": count, **more}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return options if speculate else {**options, "speculate": False}
