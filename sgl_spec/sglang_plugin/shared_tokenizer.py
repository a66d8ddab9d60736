"""One tokenizer for all of the engine's processes: SGLang builds the same one four times, at 1-3 s each.

SGLang's tokenizer manager, scheduler, model worker and detokenizer call ``get_tokenizer`` with the same
arguments and only read what they get. A process keeps what it built, and the main process builds it before
it forks its first child (`cpu_start`), so that the children find it in their memory.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sgl_spec.errors import UpstreamError
from sgl_spec.sglang_plugin.import_hooks import after_import

TOKENIZER_MODULE = "sglang.srt.utils.hf_transformers.tokenizer"


def apply() -> None:
    """Let this process build each tokenizer once."""
    after_import(TOKENIZER_MODULE, install)


def install(module: Any) -> None:
    """Put a remembering ``get_tokenizer`` into SGLang's module, before anyone takes it from there."""
    build = getattr(module, "get_tokenizer", None)
    if build is None:
        raise UpstreamError(f"{TOKENIZER_MODULE} has no get_tokenizer: install sglang==0.5.23")
    module.get_tokenizer = remember(build)


def remember(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return `build` with a memory: equal arguments give the same object."""
    built: dict[str, Any] = {}

    @functools.wraps(build)
    def get_tokenizer(*args: Any, **kwargs: Any) -> Any:
        key = repr((args, sorted(kwargs.items())))
        if key not in built:
            built[key] = build(*args, **kwargs)
        return built[key]

    return get_tokenizer


def build_for(process_args: Iterable[Any]) -> None:
    """Build the tokenizer of the server whose arguments are among a child process's arguments."""
    for args in process_args:
        path = getattr(args, "tokenizer_path", None)
        if path is None or args.skip_tokenizer_init or has_processor(path):
            continue
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        get_tokenizer(
            path,
            tokenizer_mode=args.tokenizer_mode,
            trust_remote_code=args.trust_remote_code,
            revision=args.revision,
            tokenizer_backend=args.tokenizer_backend,
        )
        return


def has_processor(path: str) -> bool:
    """Whether a model takes images or sound: SGLang then takes the tokenizer from its processor."""
    return any((Path(path) / name).exists() for name in ("preprocessor_config.json", "processor_config.json"))
