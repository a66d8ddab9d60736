"""The only folder that imports ``sglang.srt``: sgl-spec inside the SGLang engine."""
