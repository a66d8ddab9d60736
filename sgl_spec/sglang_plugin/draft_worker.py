"""A draft model loaded beside the target: a second model worker of SGLang, whatever its vocabulary."""

from pathlib import Path
from typing import Any, cast

from sglang.srt.configs.draft_parallel import DraftParallelSpec, DraftTPExecution
from sglang.srt.layers.moe.utils import draft_model_build_scope
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.base_spec_worker import EagleDraftWorkerBase
from sglang.srt.speculative.draft_parallel import resolve_draft_parallel_layout
from sglang.srt.speculative.spec_utils import draft_pp_context, draft_tp_context
from transformers import PretrainedConfig

from sgl_spec.cpu.linear import Storage
from sgl_spec.draft.model import read_card, read_hot_ids

NO_LIMIT = 1 << 30


class DraftWorker(EagleDraftWorkerBase):
    """What all draft models share: loading, and the facts of their folder."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, path: str, context_length: int) -> None:
        super().__init__()
        self.parallel_layout = resolve_draft_parallel_layout(
            DraftParallelSpec(tp_execution=DraftTPExecution.TARGET_LAYOUT)
        )
        with (
            draft_tp_context(self.parallel_layout),
            draft_pp_context(),
            draft_model_build_scope(),
            get_spec().override(speculative_draft_model_path=path),
        ):
            self.draft_worker = TpModelWorker(
                server_args=server_args,
                gpu_id=gpu_id,
                nccl_port=nccl_port,
                is_draft_worker=True,
                context_length=context_length,
            )
        self.draft_runner = self.draft_worker.model_runner
        folder = Path(self.draft_runner.model_config.model_path)
        card = read_card(folder) if folder.is_dir() else None
        self.head_ids = read_hot_ids(folder) if folder.is_dir() else None
        self.head_storage = cast("Storage", "fp32" if card is None else card.head_storage)

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Allocate the draft's KV."""
        self.draft_worker.alloc_memory_pool(**kwargs)

    def _capture_cuda_graphs(self) -> None:
        """Chains run eagerly."""

    def draft(self) -> None:
        """Not used: `SpecWorker` drives the passes."""

    def draft_extend(self) -> None:
        """Not used: there is no pass after verification."""

    @property
    def context_length(self) -> int:
        """Positions that the draft was trained for."""
        return int(self.draft_runner.model_config.context_len)


def trained_length(path: str) -> int:
    """Return how many positions a model was trained for; past them a request goes on without it."""
    config = PretrainedConfig.get_config_dict(path)[0]
    return int(config.get("max_position_embeddings") or NO_LIMIT)
