"""Entry point ``sglang.srt.plugins``: runs in SGLang's main, scheduler and detokenizer processes."""

from typing import Any


def register() -> None:
    """Register the CPU attention backend and the algorithm ``SGL_SPEC`` with SGLang."""
    from sglang.srt.arg_groups.choices import add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sgl_spec.sglang_plugin import algorithm, cpu_attention, report

    add_attention_backend_choices([cpu_attention.NAME])
    register_attention_backend(cpu_attention.NAME)(cpu_attention.CpuAttentionBackend)

    @SpeculativeAlgorithm.register(
        algorithm.NAME, supports_overlap=True, spec_class=algorithm.SglSpecAlgorithm
    )
    def worker_class(server_args: Any) -> type:
        from sgl_spec.sglang_plugin.worker import SpecWorker

        return SpecWorker

    report.install_in_tokenizer()
