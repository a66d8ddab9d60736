"""Prompts of the benchmarks: held-out prompts of three tasks (no draft was trained on them), and own others."""

from sgl_spec.errors import ConfigError
from sgl_spec.train.prompts import TASKS, held_out_prompts

KINDS = (
    "an old lighthouse keeper", "a robot that learns to paint", "a city under the ice", "two rival bakers",
    "a river that runs backwards", "the last train of the night", "a dragon who is afraid of fire",
    "a library without books", "a violin that remembers", "the first winter on Mars",
)  # fmt: skip
FORMS = ("a short story", "a poem", "a dialogue", "a letter", "the opening of a novel")
CREATIVE = "creative"


def requests(task: str, count: int) -> list[str]:
    """`count` different user requests of `task`; raises ConfigError if there are not so many."""
    if task == CREATIVE:
        found = [f"Write {form} about {kind}." for form in FORMS for kind in KINDS]
    elif task in TASKS:
        found = held_out_prompts(task)
    else:
        raise ConfigError(f"there is no workload {task!r}: use one of {', '.join((*TASKS, CREATIVE))}.")
    if not 0 < count <= len(found):
        raise ConfigError(f"prompts={count} is not possible: {task} has {len(found)} prompts, none is repeated.")
    return found[:count]


def chat_prompts(model_path: str, task: str, count: int) -> list[str]:
    """The same as whole prompts in the model's own chat template, up to where the answer begins."""
    from sgl_spec.chat_template import template_for

    template = template_for(model_path)
    begin = template.get_prefix_and_suffix("assistant", [])[0]
    default = template.default_system_prompt
    head = [{"role": "system", "content": default}] if default else []
    return [
        template.get_prompt([*head, {"role": "user", "content": request}]) + begin for request in requests(task, count)
    ]
