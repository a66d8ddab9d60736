"""Every internal of SGLang that we call, replace or subclass, with the parameters that we rely on.

SGLang promises none of these. `check` compares them when the plugin loads and names the first that differs;
`docs/upgrading.md` says what to do then.
"""

import inspect
from importlib import import_module
from typing import Any

from sgl_spec.errors import UpstreamError
from sgl_spec.upstream import VERSION, installed_version

WEIGHT_ROUTES = (
    "begin_weight_update",
    "init_weights_update_group",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_ipc",
    "update_weights_from_tensor",
    "check_weights",
    "get_weights_by_name",
    "release_memory_occupation",
    "resume_memory_occupation",
)
"""Methods of SGLang's tokenizer manager that exchange or read weights: refused on a CPU."""

TOUCHED: dict[str, tuple[str, ...]] = {
    "sglang.srt.arg_groups.choices:add_attention_backend_choices": (),
    "sglang.srt.configs.draft_parallel:DraftParallelSpec": ("tp_execution",),
    "sglang.srt.constants:HEALTH_CHECK_RID_PREFIX": (),
    "sglang.srt.layers.attention.attention_registry:register_attention_backend": ("name",),
    "sglang.srt.layers.attention.base_attn_backend:AttentionBackend.forward": (
        "self",
        "q",
        "k",
        "v",
        "layer",
        "forward_batch",
        "save_kv_cache",
    ),
    "sglang.srt.layers.logits_processor:LogitsProcessor._compute_lm_head": (
        "self",
        "hidden_states",
        "lm_head",
    ),
    "sglang.srt.layers.logprob_processor:compute_spec_logprobs": ("batch", "logits_output", "predict"),
    "sglang.srt.layers.moe.utils:draft_model_build_scope": (),
    "sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply": ("self", "layer", "x", "bias"),
    "sglang.srt.layers.sampler:apply_custom_logit_processor": ("logits", "sampling_batch_info"),
    "sglang.srt.managers.scheduler:Scheduler._forward_isolation": ("self", "batch", "overlap"),
    "sglang.srt.managers.scheduler_components.internal_state:SchedulerInternalStateController._add_speculative": (
        "self",
        "state",
    ),
    "sglang.srt.managers.scheduler_components.output_streamer:SchedulerOutputStreamer."
    "build_additional_customized_info": ("self", "reqs"),
    "sglang.srt.managers.io_struct:GenerateReqInput._normalize_single_inputs": ("self",),
    "sglang.srt.managers.tokenizer_manager:TokenizerManager._validate_one_request": ("self", "obj", "input_ids"),
    "sglang.srt.managers.tokenizer_manager:TokenizerManager._accumulate_request_meta_info": (
        "meta_info",
        "state",
        "key",
        "values",
    ),
    **{
        f"sglang.srt.managers.tokenizer_manager:TokenizerManager.{name}": ("self", "obj", "request")
        for name in WEIGHT_ROUTES
    },
    "sglang.srt.managers.tp_worker:TpModelWorker": (
        "server_args",
        "gpu_id",
        "nccl_port",
        "is_draft_worker",
        "context_length",
    ),
    "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation": ("self", "batch"),
    "sglang.srt.managers.utils:GenerationBatchResult": ("logits_output", "next_token_ids", "accept_lens"),
    "sglang.srt.mem_cache.allocation_sizing:get_alloc_reserve_per_decode": (),
    "sglang.srt.mem_cache.kv_cache_configurator:get_req_to_token_extra_context_len": (),
    "sglang.srt.mem_cache.memory_pool:ReqToTokenPool": (
        "size",
        "max_context_len",
        "device",
        "enable_memory_saver",
    ),
    "sglang.srt.model_executor.forward_batch_info:ForwardBatch": ("forward_mode", "batch_size", "input_ids"),
    "sglang.srt.runtime_context:_ConfigBag.override": ("self",),
    "sglang.srt.runtime_context:get_spec": (),
    "sglang.srt.sampling.penaltylib.orchestrator:BatchedPenalizerOrchestrator": ("vocab_size", "batch", "penalizers"),
    "sglang.srt.sampling.penaltylib.orchestrator:BatchedPenalizerOrchestrator.cumulate_output_tokens": (
        "self",
        "output_ids",
    ),
    "sglang.srt.sampling.penaltylib.orchestrator:BatchedPenalizerOrchestrator.merge": ("self", "their"),
    "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.note_request_finished": (
        "self",
        "rid",
        "natural_stop",
    ),
    "sglang.srt.speculative.base_spec_worker:EagleDraftWorkerBase.init_attention_backends": ("self",),
    "sglang.srt.speculative.draft_parallel:resolve_draft_parallel_layout": (),
    "sglang.srt.speculative.eagle_utils:eagle_prepare_for_decode": ("batch",),
    "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.register": (
        "name",
        "supports_overlap",
        "spec_class",
    ),
    "sglang.srt.speculative.spec_utils:GrammarTree.from_host": (
        "retrieve_next_token",
        "retrieve_next_sibling",
        "draft_token",
    ),
    "sglang.srt.speculative.spec_utils:build_grammar_vocab_mask": (
        "reqs",
        "tree",
        "sampling_info",
        "device",
        "barrier",
    ),
    "sglang.srt.speculative.spec_utils:draft_pp_context": (),
    "sglang.srt.speculative.spec_utils:draft_tp_context": ("layout",),
}
"""module:attribute -> parameters that must exist, in this order."""

TOUCHED_BY_HTTP: dict[str, tuple[str, ...]] = {
    "sglang.srt.entrypoints.http_server:get_global_state": (),
    "sglang.srt.entrypoints.openai.protocol:ChatCompletionResponse": ("usage",),
    "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat.handle_request": (
        "self",
        "request",
        "raw_request",
    ),
    "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat.create_error_response": (
        "self",
        "message",
        "err_type",
    ),
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request": ("self", "obj", "request"),
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.get_internal_state": ("self",),
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.serving_chat_class.fget": ("self",),
    "sglang.srt.utils.auth:decide_request_auth": ("method", "path"),
    "sglang.srt.utils.auth:AuthDecision": ("allowed",),
}
"""The same for the process that serves HTTP, which alone imports these modules."""


TOUCHED_BY_STANDALONE: dict[str, tuple[str, ...]] = {
    "sglang.srt.speculative.draft_utils:DraftBackendFactory._create_backend": (
        "self",
        "backend_name",
        "backend_map",
        "error_template",
        "stamps_children",
    ),
}


def check(touched: dict[str, tuple[str, ...]] = TOUCHED) -> None:
    """Raise UpstreamError for the first symbol that is missing or takes other parameters."""
    for name, wanted in touched.items():
        module, _, path = name.partition(":")
        try:
            found: Any = import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            raise UpstreamError(f"sglang {installed_version()} has no {name}, which {VERSION} has: {REMEDY}") from None
        has = [p for p in inspect.signature(found).parameters if p in wanted] if wanted else []
        if has != list(wanted):
            raise UpstreamError(
                f"sglang {installed_version()}: {name} takes {has}, not {list(wanted)} as in {VERSION}: {REMEDY}"
            )


REMEDY = f"install sglang=={VERSION}, or see docs/upgrading.md"
