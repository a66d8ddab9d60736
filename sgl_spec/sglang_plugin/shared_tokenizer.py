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
    if not hasattr(getattr(module, "AutoTokenizer", None), "from_pretrained"):
        raise UpstreamError(f"{TOKENIZER_MODULE} has no AutoTokenizer: install sglang==0.5.23")
    module.AutoTokenizer = AskedAgain(module.AutoTokenizer)


class AskedAgain:
    """transformers' ``AutoTokenizer``, which has ignored ``use_fast`` since its version 5, for SGLang.

    SGLang builds a tokenizer of the general class a second time with ``use_fast=False``: it gets the first one.
    """

    def __init__(self, auto: Any) -> None:
        self._auto = auto
        self._last: tuple[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._auto, name)

    def from_pretrained(self, *args: Any, **options: Any) -> Any:
        """As transformers' own."""
        asked = repr((args, sorted((name, value) for name, value in options.items() if name != "use_fast")))
        last, self._last = self._last, None
        if last is not None and last[0] == asked and options.get("use_fast") is False:
            return last[1]
        built = self._auto.from_pretrained(*args, **options)
        self._last = asked, built
        return built


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
    from sglang.srt.server_args import ServerArgs

    for args in process_args:
        if not isinstance(args, ServerArgs):
            continue
        from sglang.srt.arg_groups.overrides import resolving_view
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        resolved = resolving_view(args)  # the arguments themselves stay as they were given: no tokenizer path in most
        if resolved.skip_tokenizer_init or has_processor(resolved.tokenizer_path):
            return
        get_tokenizer(
            resolved.tokenizer_path,
            tokenizer_mode=resolved.tokenizer_mode,
            trust_remote_code=resolved.trust_remote_code,
            revision=resolved.revision,
            tokenizer_backend=resolved.tokenizer_backend,
        )
        return


def has_processor(path: str) -> bool:
    """Whether a model takes images or sound: SGLang then takes the tokenizer from its processor."""
    return any((Path(path) / name).exists() for name in ("preprocessor_config.json", "processor_config.json"))
