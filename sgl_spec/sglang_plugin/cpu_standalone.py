"""SGLang's own algorithm with a separate draft model (STANDALONE) on our CPU attention: a peer to compare with.

SGLang looks the draft's attention backends up in maps that know no plugin.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sgl_spec.sglang_plugin import compat
from sgl_spec.sglang_plugin.import_hooks import after_import

MODULE = "sglang.srt.speculative.draft_utils"


def install() -> None:
    """Let SGLang's factory of draft backends know ours, as soon as it is imported."""
    if MODULE in sys.modules:
        add(sys.modules[MODULE])
    else:
        after_import(MODULE, add)


def add(module: ModuleType) -> None:
    """Wrap the factory's one look-up."""
    compat.check(compat.TOUCHED_BY_STANDALONE)
    factory = module.DraftBackendFactory
    factory._create_backend = knowing_ours(factory._create_backend)


def knowing_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the look-up `original` with an entry for our backend added to the map that it is given."""

    def create(
        self: Any,
        backend_name: str,
        backend_map: dict[str, Any],
        error_template: str,
        stamps_children: bool = False,
    ) -> Any:
        from sgl_spec.sglang_plugin.cpu_attention import NAME, ChainDraftBackend, CpuAttentionBackend

        def ours() -> tuple[str, Any]:
            runner = self.draft_model_runner
            if stamps_children:  # the container of one backend per draft step
                return NAME, ChainDraftBackend(runner, self.topk, self.speculative_num_steps)
            return NAME, CpuAttentionBackend(runner)

        return original(self, backend_name, {**backend_map, NAME: ours}, error_template, stamps_children)

    return create
