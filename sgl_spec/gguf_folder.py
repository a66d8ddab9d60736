"""A Hugging Face model folder from a GGUF file of a Llama model with a byte-level BPE vocabulary.

Every weight is dequantised to fp32 as it stands in the file: the folder *is* the model of the file, not an
approximation of the checkpoint that it was quantised from.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from sgl_spec.rights import usual_rights

BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3  # GGUF's token_type of special tokens


def convert(gguf_file: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and generation settings of `gguf_file` into the existing `folder`."""
    from gguf import GGUFReader

    reader = GGUFReader(str(gguf_file))
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if facts["general.architecture"] != "llama":
        raise ValueError(f"the architecture is {facts['general.architecture']!r}, not 'llama'")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = _config(facts, tied)
    _write_json(folder / "config.json", config)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special)
    _write_weights(reader, config, folder / "model.safetensors")
    _write_tokenizer(facts, config["max_position_embeddings"], folder)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _config(facts: dict[str, Any], tied: bool) -> dict[str, Any]:
    width, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    theta = float(facts["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts["llama.vocab_size"],
        "hidden_size": width,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "max_position_embeddings": facts["llama.context_length"],
        # The file holds an fp32 rounding of a short decimal (9.9999997e-06 for 1e-05).
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def _write_weights(reader: Any, config: dict[str, Any], path: Path) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        value = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        block, _, kind = tensor.name.removesuffix(".weight").rpartition(".")
        if kind in heads:
            value = _half_split_rows(value, heads[kind])
        name = OUTER_TENSORS[kind] if not block else _block_name(block, kind)
        weights[f"{name}.weight"] = value
    with usual_rights(path):
        save_file(weights, path, metadata={"format": "pt"})


def _block_name(block: str, kind: str) -> str:
    return f"model.layers.{int(block.removeprefix('blk.'))}.{BLOCK_TENSORS[kind]}"


def _half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder q or k rows, `[heads * head_dim, width]`, from adjacent rotary pairs to split halves.

    GGUF keeps the two rows of a rotary pair next to each other; Hugging Face keeps them half a head apart.
    """
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, width))


def _write_tokenizer(facts: dict[str, Any], max_length: int, folder: Path) -> None:
    """The byte-level BPE of the SmolLM family: single digits, then GPT-2's word pattern."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if facts["tokenizer.ggml.pre"] != "smollm":
        raise ValueError(f"the pre-tokenizer is {facts['tokenizer.ggml.pre']!r}, not 'smollm'")
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[facts["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[facts["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[facts["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[facts["tokenizer.ggml.padding_token_id"]],
        chat_template=facts["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    ).save_pretrained(str(folder))
