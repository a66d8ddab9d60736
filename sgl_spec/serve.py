"""From sgl-spec's settings to SGLang's: one place for the command line, `Runtime` and `sgl-spec serve`."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgl_spec.config import SpecConfig, unknown_name
from sgl_spec.context import ALLOW_LONGER, shorter_drafts
from sgl_spec.errors import ConfigError
from sgl_spec.preflight import check_start, free_port, read_config
from sgl_spec.unsupported import refuse_on_cpu, refuse_other_algorithms
from sgl_spec.upstream import server_argument_names

ALGORITHM = "SGL_SPEC"
CPU_ATTENTION = "sgl_spec_cpu"
CPU_POOL_TOKENS = 16_384  # KV slots on a CPU where nothing is said: SGLang would take most of the memory
DEVICE_FILES = (
    "nvidia*",
    "dxg",
    "kfd",
    "dri",
    "accel*",
    "davinci*",
    "hl*",
    "habana*",
    "mt*gpu*",
    "cambricon*",
    "mtia*",
)
"""Accelerators that PyTorch and its extensions drive, by their files in /dev."""
CPU_DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": CPU_ATTENTION,
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "max_total_tokens": CPU_POOL_TOKENS,
    "sleep_on_idle": True,
}


@dataclass(frozen=True)
class Launch:
    """A start that passed all checks: SGLang's arguments, the environment, and what was set for the user."""

    config: SpecConfig
    server_args: dict[str, Any]
    environment: dict[str, str] = field(repr=False)
    changed: tuple[str, ...] = ()  # "name=value (reason)" of each setting that nobody asked for

    @property
    def url(self) -> str:
        """Where the server will answer."""
        host = self.server_args["host"]
        return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{self.server_args['port']}"  # noqa: S104

    @property
    def arguments(self) -> list[str]:
        """SGLang's command line."""
        words = []
        for name, value in self.server_args.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                words.append(flag)
            elif value is not None and value is not False:
                words += [
                    flag,
                    *([str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]),
                ]
        return words


def plan_launch(values: Mapping[str, Any]) -> Launch:
    """Split `values` into our settings and SGLang's, fill in what the machine wants, and check everything.

    Raises ConfigError for an unknown name and for whatever `sgl_spec.preflight` refuses.
    """
    ours = {name: value for name, value in values.items() if name in SpecConfig.model_fields}
    theirs = {name: value for name, value in values.items() if name not in SpecConfig.model_fields}
    known = server_argument_names()
    for name in theirs:
        if name not in known:
            raise ConfigError(unknown_name("sgl-spec", name, sorted(known | set(SpecConfig.model_fields))))
    refuse_other_algorithms(theirs, ALGORITHM)
    if "speculative_draft_model_path" in theirs:
        ours.setdefault("draft_model_path", theirs.pop("speculative_draft_model_path"))
    config = SpecConfig.parse(_with_sglang_draft_length(ours, theirs))
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *_python_path()])
    host = theirs.setdefault("host", "127.0.0.1")
    port = theirs["port"] = theirs.get("port") or free_port(host)
    changed = check_start(config, theirs, host, int(port))
    changed += _admit_shorter_drafts(config, theirs.get("context_length"), environment)
    if speculates(config):
        theirs |= {
            "speculative_algorithm": ALGORITHM,
            "speculative_draft_model_path": config.draft_model_paths[0] if config.draft_model_paths else None,
            "speculative_num_steps": None,
            "speculative_num_draft_tokens": None,
            "speculative_eagle_topk": None,
        }
        changed += [
            "disable_overlap_schedule=True (a round needs the tokens of the one before)",
            "enable_mixed_chunk=False (a round and a prefill do not share a batch)",
        ]
        if theirs.get("max_running_requests") is None:
            changed.append("max_running_requests=48 (as SGLang's own draft-model algorithms)")
    if theirs.get("device") == "cpu" or not has_accelerator():
        changed += _prepare_cpu(theirs, environment)
    config.to_env(environment)
    return Launch(config, {"model_path": config.model_path, **theirs}, environment, tuple(changed))


def _admit_shorter_drafts(config: SpecConfig, asked: Any, environment: dict[str, str]) -> list[str]:
    """Let SGLang start with a draft that knows less than the context asked for: it drafts as far as it knows."""
    folders = [path for path in config.draft_model_paths if Path(path).is_dir()]
    if asked is None or not folders or not Path(config.model_path).is_dir():
        return []
    drafts = [(path, read_config(path)) for path in folders]
    short = shorter_drafts(int(asked), read_config(config.model_path), drafts)
    if not short:
        return []
    environment[ALLOW_LONGER] = "1"
    return [f"{ALLOW_LONGER}=1 (drafting ends where the draft's context does: {', '.join(short)})"]


def speculates(config: SpecConfig) -> bool:
    """Whether there is any source of guesses; without one SGLang runs as it is."""
    return bool(config.draft_model_paths) or config.draft_cache or config.prediction


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _with_sglang_draft_length(ours: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Take the draft length from SGLang's flags where ours is not given."""
    if "num_speculative_tokens" in ours:
        return ours
    steps, tokens = theirs.get("speculative_num_steps"), theirs.get("speculative_num_draft_tokens")
    if steps is not None:
        return {**ours, "num_speculative_tokens": steps}
    return {**ours, "num_speculative_tokens": tokens - 1} if tokens is not None else ours


def has_accelerator() -> bool:
    """Whether torch sees a GPU or another accelerator; on Linux only asked where there is a device file of one."""
    if sys.platform == "linux" and not any(next(Path("/dev").glob(name), None) for name in DEVICE_FILES):
        return False
    import torch

    return torch.accelerator.is_available()


def _prepare_cpu(args: dict[str, Any], environment: dict[str, str]) -> list[str]:
    refuse_on_cpu(args.get)
    changed = []
    for name, value in CPU_DEFAULTS.items():
        if args.get(name) is None:
            args[name] = value
            if name != "device":
                changed.append(f"{name}={value} (no accelerator)")
    environment["SGLANG_USE_CPU_ENGINE"] = "1"
    environment.setdefault("SGLANG_EAGER_INPUT_NO_COPY", "1")
    if "OMP_NUM_THREADS" not in environment:
        threads = idle_threads()
        environment["OMP_NUM_THREADS"] = str(threads)
        changed.append(f"OMP_NUM_THREADS={threads} (idle cores; set it to choose yourself)")
    environment.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads on a busy core are ten times slower
    environment.setdefault("GOMP_SPINCOUNT", "0")
    return changed


def idle_threads() -> int:
    """How many threads the models get: the cores that are idle now, one left for the server's other processes."""
    import psutil

    allowed = sorted(os.sched_getaffinity(0))
    load = psutil.cpu_percent(interval=0.2, percpu=True)
    idle = sum(1 for core in allowed if core < len(load) and load[core] < 50.0)
    return max(1, min(idle, len(allowed) - 1))
