"""Weights are packed when a server starts, and their originals freed: what would exchange or read them is refused.

SGLang's own update would copy new norms and embeddings into place and fail at the first packed matrix: half
another model, which answers.
"""

from typing import Any, NoReturn

from sglang.srt.managers.tokenizer_manager import TokenizerManager

from sgl_spec.errors import ConfigError

SENTENCE = (
    "The weights of this server were packed for the CPU at its start and stay as they are: restart it with others."
)
UPDATES = (
    "begin_weight_update",
    "init_weights_update_group",
    "update_weights_from_distributed",
    "update_weights_from_ipc",
    "update_weights_from_tensor",
)
READS = ("get_weights_by_name", "release_memory_occupation", "resume_memory_occupation")


async def refuse_update(self: TokenizerManager, obj: Any, request: Any = None) -> tuple[bool, str]:
    """Success and message, as SGLang's own."""
    return False, SENTENCE


async def refuse_update_from_disk(self: TokenizerManager, obj: Any, request: Any = None) -> tuple[bool, str, int]:
    """Success, message and paused requests, as SGLang's own."""
    return False, SENTENCE, 0


async def refuse_check(self: TokenizerManager, obj: Any, request: Any = None) -> tuple[bool, str, None, None]:
    """Success, message and the checksums that are not there, as SGLang's own."""
    return False, SENTENCE, None, None


async def refuse_read(self: TokenizerManager, obj: Any, request: Any = None) -> NoReturn:
    """Raise ConfigError, which SGLang's routes answer with status 400."""
    raise ConfigError(SENTENCE)


def install() -> None:
    """Refuse in the process that takes requests, before anything is paused or aborted for them."""
    for name in UPDATES:
        setattr(TokenizerManager, name, refuse_update)
    for name in READS:
        setattr(TokenizerManager, name, refuse_read)
    TokenizerManager.update_weights_from_disk = refuse_update_from_disk
    TokenizerManager.check_weights = refuse_check
