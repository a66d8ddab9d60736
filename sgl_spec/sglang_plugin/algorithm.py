"""The algorithm ``SGL_SPEC`` as SGLang's registry knows it."""

from typing import Any

from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sgl_spec.config import SpecConfig
from sgl_spec.sglang_plugin import cpu_attention
from sgl_spec.unsupported import refuse

NAME = "SGL_SPEC"
DEFAULT_MAX_RUNNING_REQUESTS = 48  # as SGLang's own draft-model algorithms


class SglSpecAlgorithm(CustomSpecAlgo):
    """A standalone draft model as far as SGLang's memory planning and scheduling are concerned."""

    draft_model = True  # set from the configuration before anything asks

    def is_standalone(self) -> bool:
        """Size the KV pool for a private draft model of the same slots, where there is one."""
        return self.draft_model

    def has_draft_kv(self) -> bool:
        """Whether drafting writes to a pool of its own."""
        return self.draft_model

    def need_topk(self) -> bool:
        """The relay between rounds carries nothing: the worker keeps its state on the host."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """The draft is an ordinary language model."""
        return False

    def create_future_map(self, device: Any, req_to_token_pool: Any, *args: Any, **kwargs: Any) -> Any:
        """As the built-in algorithms."""
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, *args, **kwargs)

    def get_platform_worker_cls(self) -> None:
        """There is one worker for all platforms."""

    def handle_server_args(self, server_args: Any) -> None:
        """Derive SGLang's settings from ours; refuse what the round does not support."""
        config = config_of(server_args)
        refuse(lambda name: getattr(server_args, name, None))
        self.draft_model = bool(config.draft_model_paths)
        server_args.speculative_eagle_topk = 1
        server_args.speculative_num_steps = max(config.k_max, 1)
        server_args.speculative_num_draft_tokens = max(config.k_max, 1) + 1
        server_args.disable_overlap_schedule = True
        server_args.enable_mixed_chunk = False
        if server_args.max_running_requests is None:
            server_args.max_running_requests = DEFAULT_MAX_RUNNING_REQUESTS
        if server_args.device == "cpu" and server_args.attention_backend is None:
            server_args.attention_backend = cpu_attention.NAME


def config_of(server_args: Any) -> SpecConfig:
    """Return what `Runtime` or `sgl-spec serve` put into the environment, else what SGLang's flags say."""
    config = SpecConfig.from_env()
    if config is not None:
        return config
    view = resolving_view(server_args) if not hasattr(server_args, "model_path") else server_args
    values: dict[str, Any] = {"model_path": view.model_path}
    if view.speculative_draft_model_path:
        values["draft_model_path"] = view.speculative_draft_model_path
    if view.speculative_num_steps is not None:
        values["num_speculative_tokens"] = view.speculative_num_steps
    return SpecConfig.parse(values)
