"""Entry point ``sglang.srt.plugins``: runs in SGLang's main, scheduler and detokenizer processes."""


def register() -> None:
    """Register the CPU attention backend and the algorithm ``SGL_SPEC`` with SGLang."""
    from sglang.srt.arg_groups.choices import add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    from sgl_spec.sglang_plugin import cpu_attention

    add_attention_backend_choices([cpu_attention.NAME])
    register_attention_backend(cpu_attention.NAME)(cpu_attention.CpuAttentionBackend)
