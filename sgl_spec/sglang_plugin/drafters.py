"""Which kind of draft model a configuration asks for: of the target's vocabulary, or of another one."""

import logging
from typing import Any

from sglang.srt.managers.tp_worker import TpModelWorker
from transformers import AutoConfig, AutoTokenizer

from sgl_spec.config import SpecConfig
from sgl_spec.draft.vocab import SharedVocabulary, relate, shared_by_file, vocab_size
from sgl_spec.sglang_plugin.draft_model import DraftModel
from sgl_spec.sglang_plugin.foreign_draft import ForeignDraft

logger = logging.getLogger(__name__)
Drafter = DraftModel | ForeignDraft


def load_drafter(
    config: SpecConfig, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
) -> Drafter | None:
    """Load the draft model of `config`, None if it names none; raises VocabularyError for one that does not fit."""
    if not config.draft_model_paths:
        return None
    path = config.draft_model_paths[0]
    drafter: Drafter
    relation = shared_by_file(config.model_path, path)
    if relation is not None:
        drafter = DraftModel(server_args, gpu_id, nccl_port, target_worker, path, relation)
    else:
        tokenizer = AutoTokenizer.from_pretrained(path)
        rows, columns = target_worker.model_runner.model_config.vocab_size, vocab_size(AutoConfig.from_pretrained(path))
        found = relate(target_worker.tokenizer, tokenizer, rows, columns, mode=config.draft_vocabulary)
        if isinstance(found, SharedVocabulary):
            drafter = DraftModel(server_args, gpu_id, nccl_port, target_worker, path, found)
        else:
            drafter = ForeignDraft(server_args, gpu_id, nccl_port, target_worker, path, found, tokenizer)
    logger.info(drafter.sentence())
    return drafter
