"""`sgl-spec doctor`: what is installed, what is live, what a server does, and why it may be slow."""

import os
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import httpx
import typer

from sgl_spec.bench.provenance import machine
from sgl_spec.console import JsonFlag, emit, people, table
from sgl_spec.doctor_reason import diagnose
from sgl_spec.errors import ConfigError, EngineError
from sgl_spec.upstream import VERSION, installed_version

HOOKS = {"sglang.srt.platforms": "sgl_spec_cpu", "sglang.srt.plugins": "sgl_spec"}
SHOWN_ARGUMENTS = (
    "model_path",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "device",
    "dtype",
    "attention_backend",
    "tp_size",
    "max_running_requests",
    "max_total_tokens",
    "disable_overlap_schedule",
    "disable_radix_cache",
)
TIMEOUT_S = 30.0


def doctor(
    url: Annotated[str | None, typer.Argument(help="Address of a running server; none: this machine only.")] = None,
    *,
    api_key: Annotated[str | None, typer.Option(help="The server's API key.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Versions, hooks, kernels, threads; of a server its settings, acceptance and rounds; one reason, one remedy.

    \b
    Examples:
      sgl-spec doctor
      sgl-spec doctor http://127.0.0.1:30000 --json
    """
    out = people(json_output)
    server = None if url is None else server_facts(url, api_key)
    local = local_facts()
    found = diagnose(local, server)
    out.print(table("this machine", ("", ""), _lines(local)))
    if server is not None:
        out.print(table(f"server at {url}", ("", ""), _lines(server)))
    out.print(f"{found.reason}\n{found.remedy}")
    if json_output:
        emit({"local": local, "server": server, "reason": found.reason, "remedy": found.remedy})


def local_facts() -> dict[str, Any]:
    """Facts of this installation and machine; `cpu_kernels` is None where they load, else the reason."""
    import torch

    from sgl_spec.cpu.build import load

    live = {(group, point.name) for group in HOOKS for point in entry_points(group=group)}
    accelerator = torch.accelerator.is_available()
    kernels = None if accelerator else load()
    threads = os.environ.get("OMP_NUM_THREADS")
    return {
        "sglang": installed_version(),
        "sglang_expected": VERSION,
        "torch": version("torch"),
        "transformers": version("transformers"),
        "hooks": {f"{group}:{name}": (group, name) in live for group, name in HOOKS.items()},
        "accelerator": accelerator,
        "cpu_kernels": kernels if isinstance(kernels, str) else None,
        **{key: value for key, value in machine().items() if key != "accelerator"},
        "omp_num_threads": int(threads) if threads and threads.isdigit() else None,
        "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
    }


def server_facts(url: str, api_key: str | None = None) -> dict[str, Any]:
    """What a server says of itself; raises ConfigError for no address, EngineError if none answers there."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"url={url!r} is no address: give one such as http://127.0.0.1:30000.")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/server_info", headers=headers, timeout=TIMEOUT_S)
        answer.raise_for_status()
        info = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise EngineError(f"No SGLang server answers at {url} ({error}): start one or correct the address.") from None
    from sgl_spec.runtime import spec_state_of

    state = spec_state_of(info) or {}
    return {
        "arguments": {name: info.get(name) for name in SHOWN_ARGUMENTS},
        "config": state.get("config"),
        "controller": state.get("controller"),
        "running": state.get("running"),
        "kv_slots": state.get("kv_slots"),
        "kv_slots_free": state.get("kv_slots_free"),
        "stats": state.get("stats"),
    }


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Nested facts as rows, without what is empty."""
    rows = []
    for key, value in facts.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", text) for name, text in _lines(value)]
        elif value not in (None, [], ""):
            rows.append((key, f"{value:.3f}" if isinstance(value, float) else str(value)))
    return rows
