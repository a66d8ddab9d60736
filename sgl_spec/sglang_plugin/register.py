"""Entry point ``sglang.srt.plugins``: runs in SGLang's main, scheduler and detokenizer processes."""

import logging
import multiprocessing
from typing import Any

logger = logging.getLogger(__name__)


def register() -> None:
    """Register the CPU attention backend and the algorithm ``SGL_SPEC`` with SGLang."""
    from sglang.srt.arg_groups.choices import add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sgl_spec.sglang_plugin import (
        admission,
        algorithm,
        clock,
        compat,
        cpu_attention,
        http_server,
        lossy_stream,
        report,
    )

    if multiprocessing.parent_process() is not None:  # a spawned process of the engine, whose streams are no program's
        lossy_stream.install()
    compat.check()
    add_attention_backend_choices([cpu_attention.NAME])
    register_attention_backend(cpu_attention.NAME)(cpu_attention.CpuAttentionBackend)

    @SpeculativeAlgorithm.register(algorithm.NAME, supports_overlap=True, spec_class=algorithm.SglSpecAlgorithm)
    def worker_class(server_args: Any) -> type:
        from sgl_spec.sglang_plugin.worker import SpecWorker

        clock.install_if_asked()
        return SpecWorker

    report.install_in_tokenizer()
    admission.install()
    http_server.install()
    _install_cpu_kernels()


def _install_cpu_kernels() -> None:
    """Where there is no accelerator, run linear layers on our kernel (target, draft, plain decoding alike)."""
    from sglang.srt.utils import is_cpu

    from sgl_spec.config import SpecConfig

    if not is_cpu():
        return
    from sgl_spec.sglang_plugin import cpu_linear, cpu_standalone

    cpu_standalone.install()
    config = SpecConfig.from_env()
    logger.info(cpu_linear.install("fp32" if config is None else config.cpu_weights))
