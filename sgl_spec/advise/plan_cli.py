"""`sgl-spec plan`: the memory plan as a table and as JSON."""

from typing import Annotated, Literal

import typer

from sgl_spec.advise.article import article_plan
from sgl_spec.advise.plan import Model, PlanRequest, make_plan
from sgl_spec.advise.plan_text import print_article, print_changes, print_models, print_plan
from sgl_spec.advise.resolve import resolve
from sgl_spec.advise.suggest import suggestions
from sgl_spec.console import JsonFlag, emit
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest

PRESETS = ("article", "demo")


def plan(
    target: Annotated[str | None, typer.Argument(help="Model folder, or a known model's name (--list).")] = None,
    draft: Annotated[str | None, typer.Argument(help="The same for the draft; left out: no draft.")] = None,
    *,
    preset: Annotated[str | None, typer.Option(help="article: the 72B + 7B plan; demo: the demo pair here.")] = None,
    list_models: Annotated[bool, typer.Option("--list", help="List the known models and end.")] = False,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    dtype: Annotated[str | None, typer.Option(help="Default: bfloat16, on a CPU float32.")] = None,
    quantization: Annotated[str | None, typer.Option(help="Of the target's matrices, SGLang's name.")] = None,
    draft_quantization: Annotated[
        str | None, typer.Option(help="Of the draft's; default: the target's, as in SGLang; 'none' for none.")
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, bfloat16, fp8_e4m3 or fp8_e5m2.")] = "auto",
    tp_size: Annotated[int, typer.Option(min=1, help="Devices that share each model.")] = 1,
    context_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per request; default: the target's.")
    ] = None,
    max_running_requests: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    max_total_tokens: Annotated[int | None, typer.Option(min=1, help="KV slots; default: requests x context.")] = None,
    num_speculative_tokens: Annotated[int, typer.Option(min=0, max=32, help="K that slots are reserved for.")] = 5,
    chunked_prefill_size: Annotated[int, typer.Option(min=1, help="Tokens per prefill chunk.")] = 8192,
    memory: Annotated[float | None, typer.Option(min=0.001, help="GB (1e9 bytes) of one device.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """How much memory a target and its draft need, line by line, before anything is started.

    \b
    Examples:
      sgl-spec plan --preset article
      sgl-spec plan Qwen2.5-72B Qwen2.5-1.5B --tp-size 4 --memory 85.9
      sgl-spec plan ./target ./draft --device cpu --max-total-tokens 16384 --json
    """
    if list_models:
        print_models(json_output)
        return
    if preset is not None:
        _refuse_models_with_preset(preset, target)
        if preset == "article":
            print_article(article := article_plan(), json_output)
            if json_output:
                emit(article)
            return
        device, max_total_tokens = "cpu", max_total_tokens or 16384
        target, draft = _demo_pair()
    if target is None:
        raise ConfigError(
            "plan needs a target: a model folder, a name from `sgl-spec plan --list`, or --preset article."
        )
    dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
    draft_quantization = quantization if draft_quantization is None else draft_quantization
    request = PlanRequest(
        target=_model(target, dtype, quantization, kv_cache_dtype),
        draft=None
        if draft is None
        else _model(draft, dtype, None if draft_quantization == "none" else draft_quantization, kv_cache_dtype),
        device=_device(device),
        tp_size=tp_size,
        context_length=context_length,
        max_running_requests=max_running_requests,
        max_total_tokens=max_total_tokens,
        num_speculative_tokens=num_speculative_tokens if draft else 0,
        chunked_prefill_size=chunked_prefill_size,
        memory_gb=memory,
    )
    made = make_plan(request)
    changes = suggestions(request, made)
    print_plan(made, json_output)
    print_changes(changes, json_output)
    if json_output:
        emit(
            {
                **made.model_dump(mode="json"),
                "suggestions": [change.model_dump(mode="json") for change in changes],
            }
        )


def _model(name: str, dtype: str, quantization: str | None, kv_dtype: str) -> Model:
    model, _ = resolve(name)
    return model.model_copy(update={"dtype": dtype, "quantization": quantization, "kv_dtype": kv_dtype})


def _device(name: str) -> Literal["cuda", "cpu"]:
    if name == "cuda":
        return "cuda"
    if name == "cpu":
        return "cpu"
    raise ConfigError(f"device={name!r} is not planned here{nearest(name, ('cuda', 'cpu'))}.")


def _refuse_models_with_preset(preset: str, target: str | None) -> None:
    if preset not in PRESETS:
        raise ConfigError(f"preset={preset!r} does not exist{nearest(preset, PRESETS)}.")
    if target is not None:
        raise ConfigError(f"--preset {preset} names its models itself: leave out {target!r} or the preset.")


def _demo_pair() -> tuple[str, str]:
    from sgl_spec.models import fetch_demo

    target, draft = fetch_demo()
    return str(target), str(draft)
