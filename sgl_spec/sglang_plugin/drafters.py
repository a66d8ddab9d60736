"""Which kind of draft a configuration asks for: of the target's vocabulary, of another one, or several models."""

import logging
from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from transformers import AutoConfig, AutoTokenizer

from sgl_spec.config import SpecConfig
from sgl_spec.draft.vocab import SharedVocabulary, relate, shared_by_file, vocab_size
from sgl_spec.errors import VocabularyError
from sgl_spec.sglang_plugin.draft_model import DraftModel
from sgl_spec.sglang_plugin.foreign_draft import ForeignDraft
from sgl_spec.sglang_plugin.pyramid_draft import PyramidDraft

logger = logging.getLogger(__name__)
Drafter = DraftModel | ForeignDraft | PyramidDraft


def load_drafter(
    config: SpecConfig, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
) -> Drafter | None:
    """Load the draft models of `config`, None if it names none; raises VocabularyError for one that does not fit."""
    loaded = [_load(config, path, server_args, gpu_id, nccl_port, target_worker) for path in config.draft_model_paths]
    if not loaded:
        return None
    drafter: Drafter = loaded[0]
    if len(loaded) > 1:
        same = [model for model in loaded if isinstance(model, DraftModel)]
        if len(same) < len(loaded):
            raise VocabularyError(
                f"draft_model_path names {len(loaded)} models, one of them with another vocabulary than the target: "
                "name that one alone, or leave it out"
            )
        drafter = PyramidDraft(same, target_worker.model_runner.model_config.vocab_size)
    logger.info(drafter.sentence())
    return drafter


def _load(
    config: SpecConfig, path: str, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
) -> DraftModel | ForeignDraft:
    relation = shared_by_file(config.model_path, path)
    if relation is not None:
        return DraftModel(server_args, gpu_id, nccl_port, target_worker, path, relation)
    tokenizer = AutoTokenizer.from_pretrained(path)
    rows, columns = target_worker.model_runner.model_config.vocab_size, vocab_size(AutoConfig.from_pretrained(path))
    found = relate(target_worker.tokenizer, tokenizer, rows, columns, mode=config.draft_vocabulary)
    if isinstance(found, SharedVocabulary):
        return DraftModel(server_args, gpu_id, nccl_port, target_worker, path, found)
    return ForeignDraft(server_args, gpu_id, nccl_port, target_worker, path, found, tokenizer)
