"""Known model families: sizes from the models' published config.json, licences from their cards.

A family shares one tokenizer, so any smaller member can draft for any larger one. The size of the
vocabulary may differ inside a family (Qwen2.5 pads to 151936 or 152064): the ids that both have are the
same. A test holds each row against the published number of parameters.
"""

from functools import cache
from typing import NamedTuple

from sgl_spec.advise.shape import Experts, ModelShape


class Known(NamedTuple):
    """One published model; `published` is the number of parameters in 1e9 that its card states."""

    family: str
    licence: str
    published: float
    shape: ModelShape


# Families whose tokenizers have the same ids for the same text.
_SAME_TOKENIZER = ({"Qwen2.5", "Qwen2.5-Coder"},)

_EXPERTS = {
    "Qwen3-30B-A3B": Experts(count=128, active=8, ffn=768),
    "Qwen3-235B-A22B": Experts(count=128, active=8, ffn=1536),
}

# heads: query heads / KV heads / size of a head; head: whether the output head is the embedding matrix
_TABLE = """
family        | name                        | 1e9   | layers | hidden | heads     | ffn   | vocab  | context | head | licence
Qwen2.5       | Qwen2.5-0.5B-Instruct       | 0.494 | 24     | 896    | 14/2/64   | 4864  | 151936 | 32768   | tied | Apache-2.0
Qwen2.5       | Qwen2.5-1.5B-Instruct       | 1.54  | 28     | 1536   | 12/2/128  | 8960  | 151936 | 32768   | tied | Apache-2.0
Qwen2.5       | Qwen2.5-3B-Instruct         | 3.09  | 36     | 2048   | 16/2/128  | 11008 | 151936 | 32768   | tied | Qwen Research License
Qwen2.5       | Qwen2.5-7B-Instruct         | 7.61  | 28     | 3584   | 28/4/128  | 18944 | 152064 | 32768   | -    | Apache-2.0
Qwen2.5       | Qwen2.5-14B-Instruct        | 14.7  | 48     | 5120   | 40/8/128  | 13824 | 152064 | 32768   | -    | Apache-2.0
Qwen2.5       | Qwen2.5-32B-Instruct        | 32.5  | 64     | 5120   | 40/8/128  | 27648 | 152064 | 32768   | -    | Apache-2.0
Qwen2.5       | Qwen2.5-72B-Instruct        | 72.7  | 80     | 8192   | 64/8/128  | 29568 | 152064 | 32768   | -    | Qwen License
Qwen2.5-Coder | Qwen2.5-Coder-0.5B-Instruct | 0.494 | 24     | 896    | 14/2/64   | 4864  | 151936 | 32768   | tied | Apache-2.0
Qwen2.5-Coder | Qwen2.5-Coder-1.5B-Instruct | 1.54  | 28     | 1536   | 12/2/128  | 8960  | 151936 | 32768   | tied | Apache-2.0
Qwen2.5-Coder | Qwen2.5-Coder-3B-Instruct   | 3.09  | 36     | 2048   | 16/2/128  | 11008 | 151936 | 32768   | tied | Qwen Research License
Qwen2.5-Coder | Qwen2.5-Coder-7B-Instruct   | 7.61  | 28     | 3584   | 28/4/128  | 18944 | 152064 | 32768   | -    | Apache-2.0
Qwen2.5-Coder | Qwen2.5-Coder-14B-Instruct  | 14.7  | 48     | 5120   | 40/8/128  | 13824 | 152064 | 32768   | -    | Apache-2.0
Qwen2.5-Coder | Qwen2.5-Coder-32B-Instruct  | 32.5  | 64     | 5120   | 40/8/128  | 27648 | 152064 | 32768   | -    | Apache-2.0
Qwen3         | Qwen3-0.6B                  | 0.6   | 28     | 1024   | 16/8/128  | 3072  | 151936 | 40960   | tied | Apache-2.0
Qwen3         | Qwen3-1.7B                  | 1.7   | 28     | 2048   | 16/8/128  | 6144  | 151936 | 40960   | tied | Apache-2.0
Qwen3         | Qwen3-4B                    | 4     | 36     | 2560   | 32/8/128  | 9728  | 151936 | 40960   | tied | Apache-2.0
Qwen3         | Qwen3-8B                    | 8.2   | 36     | 4096   | 32/8/128  | 12288 | 151936 | 40960   | -    | Apache-2.0
Qwen3         | Qwen3-14B                   | 14.8  | 40     | 5120   | 40/8/128  | 17408 | 151936 | 40960   | -    | Apache-2.0
Qwen3         | Qwen3-32B                   | 32.8  | 64     | 5120   | 64/8/128  | 25600 | 151936 | 40960   | -    | Apache-2.0
Qwen3         | Qwen3-30B-A3B               | 30.5  | 48     | 2048   | 32/4/128  | 6144  | 151936 | 40960   | -    | Apache-2.0
Qwen3         | Qwen3-235B-A22B             | 235.1 | 94     | 4096   | 64/4/128  | 12288 | 151936 | 40960   | -    | Apache-2.0
Llama 3       | Llama-3.2-1B-Instruct       | 1.24  | 16     | 2048   | 32/8/64   | 8192  | 128256 | 131072  | tied | Llama 3.2 Community
Llama 3       | Llama-3.2-3B-Instruct       | 3.21  | 28     | 3072   | 24/8/128  | 8192  | 128256 | 131072  | tied | Llama 3.2 Community
Llama 3       | Llama-3.1-8B-Instruct       | 8.03  | 32     | 4096   | 32/8/128  | 14336 | 128256 | 131072  | -    | Llama 3.1 Community
Llama 3       | Llama-3.1-70B-Instruct      | 70.6  | 80     | 8192   | 64/8/128  | 28672 | 128256 | 131072  | -    | Llama 3.1 Community
Llama 3       | Llama-3.3-70B-Instruct      | 70.6  | 80     | 8192   | 64/8/128  | 28672 | 128256 | 131072  | -    | Llama 3.3 Community
Llama 3       | Llama-3.1-405B-Instruct     | 405.9 | 126    | 16384  | 128/8/128 | 53248 | 128256 | 131072  | -    | Llama 3.1 Community
SmolLM2       | SmolLM2-135M-Instruct       | 0.135 | 30     | 576    | 9/3/64    | 1536  | 49152  | 8192    | tied | Apache-2.0
SmolLM2       | SmolLM2-360M-Instruct       | 0.362 | 32     | 960    | 15/5/64   | 2560  | 49152  | 8192    | tied | Apache-2.0
SmolLM2       | SmolLM2-1.7B-Instruct       | 1.71  | 24     | 2048   | 32/32/64  | 8192  | 49152  | 8192    | tied | Apache-2.0
Llama 2       | TinyLlama-1.1B-Chat         | 1.1   | 22     | 2048   | 32/4/64   | 5632  | 32000  | 2048    | -    | Apache-2.0
Llama 2       | Llama-2-7b-chat             | 6.74  | 32     | 4096   | 32/32/128 | 11008 | 32000  | 4096    | -    | Llama 2 Community
Llama 2       | Llama-2-13b-chat            | 13    | 40     | 5120   | 40/40/128 | 13824 | 32000  | 4096    | -    | Llama 2 Community
Llama 2       | Llama-2-70b-chat            | 69    | 80     | 8192   | 64/8/128  | 28672 | 32000  | 4096    | -    | Llama 2 Community
Mistral v3    | Mistral-7B-Instruct-v0.3    | 7.25  | 32     | 4096   | 32/8/128  | 14336 | 32768  | 32768   | -    | Apache-2.0
Mistral v3    | Mistral-Large-Instruct-2407 | 122.6 | 88     | 12288  | 96/8/128  | 28672 | 32768  | 131072  | -    | Mistral Research License
"""  # noqa: E501 - a table is read by its columns


@cache
def known_models() -> tuple[Known, ...]:
    """All rows of the table."""
    return tuple(_known(line) for line in _TABLE.strip().splitlines()[1:])


def _known(line: str) -> Known:
    family, name, billions, *sizes, licence = (cell.strip() for cell in line.split("|"))
    layers, hidden, heads, ffn, vocab, context, head = sizes
    query, key, size = heads.split("/")
    shape = ModelShape(
        name=name,
        layers=int(layers),
        hidden=int(hidden),
        heads=int(query),
        kv_heads=int(key),
        head_dim=int(size),
        ffn=int(ffn),
        vocab=int(vocab),
        context=int(context),
        tied=head == "tied",
        qkv_bias=family.startswith("Qwen2.5"),
        qk_norm=family == "Qwen3",
        experts=_EXPERTS.get(name),
    )
    return Known(family, licence, float(billions), shape)


def find(name: str) -> Known | None:
    """The known model called `name`: hub prefix, case and a missing "-Instruct" do not matter."""
    plain = name.rsplit("/", 1)[-1].lower()
    for known in known_models():
        full = known.shape.name.lower()
        if plain in (full, full.removesuffix("-instruct"), full.removesuffix("-chat")):
            return known
    return None


def same_tokenizer(one: str, other: str) -> bool:
    """Whether two families share their token ids."""
    return one == other or any({one, other} <= group for group in _SAME_TOKENIZER)
