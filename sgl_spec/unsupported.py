"""Server settings of SGLang under which the round would be wrong or was never tried."""

from collections.abc import Callable, Mapping
from typing import Any

from sgl_spec.config import shown
from sgl_spec.errors import ConfigError

ONE_ONLY = ("pp_size", "dp_size")
OFF_ONLY = ("enable_dp_attention", "enable_hierarchical_cache", "enable_return_hidden_states")
ADAPTERS = ("enable_lora", "lora_paths")  # the fused forward and the verify pass know nothing of them
OF_A_DRAFT = (
    "speculative_draft_attention_backend",
    "speculative_draft_kv_cache_dtype",
    "speculative_draft_load_format",
    "speculative_draft_model_path",
    "speculative_draft_model_quantization",
    "speculative_draft_model_revision",
    "speculative_eagle_topk",
    "speculative_moe_a2a_backend",
    "speculative_moe_runner_backend",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
)
"""Of SGLang's settings for speculation those that act here too."""


def refuse_other_algorithms(given: Mapping[str, Any], ours: str) -> None:
    """Raise ConfigError for a setting of another algorithm than `ours`: it would be replaced, or do nothing."""
    for name, value in given.items():
        if name == "speculative_algorithm" and value not in (None, ours):
            raise ConfigError(
                f"{name}={shown(value)} is another algorithm than sgl-spec's own: leave it out, or start SGLang itself"
            )
        if name.startswith("speculative_") and name not in (*OF_A_DRAFT, "speculative_algorithm") and value is not None:
            instead = " and choose a controller" if "adaptive" in name else ""
            raise ConfigError(f"{name}={shown(value)} belongs to another algorithm of SGLang: leave it out{instead}")


def refuse(read: Callable[[str], Any]) -> None:
    """Raise ConfigError for the first such setting; `read` returns a setting by its name, None if it is not given."""
    topk = read("speculative_eagle_topk")
    if topk not in (None, 1):
        raise ConfigError(f"speculative_eagle_topk={topk}: sgl-spec drafts chains; leave it out or use 1")
    for knob in ONE_ONLY:
        value = read(knob)
        if value and int(value) > 1:
            raise ConfigError(
                f"{knob}={value} is not supported with sgl-spec: use 1, tensor parallelism (tp_size), "
                "or several servers behind sglang-router"
            )
    for knob in OFF_ONLY:
        if read(knob):
            raise ConfigError(f"{knob}=True is not supported with sgl-spec: leave it out")
    for knob in ADAPTERS:
        if read(knob):
            raise ConfigError(
                f"{knob}={shown(read(knob))} is not supported with sgl-spec: merge the adapter into its base model "
                "and name the merged folder as model_path"
            )
    workers = read("tokenizer_worker_num")
    if workers and int(workers) > 1 and read("api_key"):
        raise ConfigError(
            f"tokenizer_worker_num={workers} and api_key exclude each other in SGLang: leave one of them out, "
            "or start several servers behind sglang-router"
        )
    mode = read("disaggregation_mode")
    if mode not in (None, "null"):
        raise ConfigError(f"disaggregation_mode={mode} is not supported with sgl-spec: leave it out")


def refuse_on_cpu(read: Callable[[str], Any]) -> None:
    """Raise ConfigError for what SGLang itself cannot do without an accelerator; `read` as in `refuse`."""
    pages = read("page_size")
    if pages and int(pages) > 1:
        raise ConfigError(f"page_size={pages} needs an accelerator in SGLang: leave it out or use 1")
