"""sgl-spec: lossless, self-tuning speculative decoding for SGLang programs and servers."""
