"""The front end's chat template for a model, read from the model's own Jinja template.

SGLang's front end knows templates by the model's name and gives every other model a plain "USER:" one, which
a chat model was never trained on. Here the model's template is rendered with marks for the messages, cut at
the marks into one prefix and suffix per role, and used only if it then rebuilds a conversation exactly.
"""

import json
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from sglang.lang.chat_template import ChatTemplate, get_chat_template_by_model_path

ROLES = ("system", "user", "assistant")
MARKS = {role: f"\u2403{role}\u2403" for role in ROLES}


def template_for(model_path: str) -> ChatTemplate:
    """Return the template that SGLang knows by name, else the folder's own, else SGLang's default."""
    known = get_chat_template_by_model_path(model_path)
    if known.name != "default":
        return known
    return cut_template(Path(model_path)) or known


def cut_template(folder: Path) -> ChatTemplate | None:
    """Return the folder's Jinja template as prefixes and suffixes; None if it cannot be cut exactly."""
    source, settings = _read(folder)
    if source is None:
        return None
    try:
        template = _cut(folder.name, source, settings)
        return template if template is not None and _rebuilds(template, source, settings) else None
    except TemplateError:
        return None


def _read(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """(Jinja source, tokenizer settings) of a model folder."""
    settings: dict[str, Any] = {}
    config = folder / "tokenizer_config.json"
    if config.is_file():
        settings = json.loads(config.read_text(encoding="utf-8"))
    own = folder / "chat_template.jinja"
    source = own.read_text(encoding="utf-8") if own.is_file() else settings.get("chat_template")
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        settings["post_processor"] = json.dumps(
            json.loads(tokenizer.read_text("utf-8")).get("post_processor")
        )
    return source if isinstance(source, str) else None, settings


def _render(
    source: str, settings: dict[str, Any], messages: list[dict[str, str]], prompt: bool = False
) -> str:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise TemplateError(message)

    names = {key: _token(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
    text = environment.from_string(source).render(
        messages=messages, add_generation_prompt=prompt, raise_exception=refuse, **names
    )
    bos = names["bos_token"]
    adds_bos = settings.get("add_bos_token") or (
        bos and json.dumps(bos) in settings.get("post_processor", "")
    )
    return text.removeprefix(bos) if bos and adds_bos else text


def _token(value: Any) -> str:
    return value.get("content", "") if isinstance(value, dict) else value or ""


def _cut(name: str, source: str, settings: dict[str, Any]) -> ChatTemplate | None:
    said = [{"role": role, "content": MARKS[role]} for role in ROLES]

    def after(role: str, count: int, prompt: bool = False) -> str:
        text = _render(source, settings, said[:count], prompt)
        if text.count(MARKS[role]) != 1:
            raise TemplateError(f"the {role} message is not rendered as it is")
        return text.partition(MARKS[role])[2]

    suffixes = {"system": after("system", 1), "user": after("user", 2), "assistant": after("assistant", 3)}
    whole = _render(source, settings, said)
    prefixes = {
        "system": whole.partition(MARKS["system"])[0],
        "user": _between(whole, MARKS["system"], MARKS["user"]).removeprefix(suffixes["system"]),
        "assistant": after("user", 2, prompt=True).removeprefix(suffixes["user"]),
    }
    alone = _render(source, settings, said[1:2]).partition(MARKS["user"])[0].removesuffix(prefixes["user"])
    default = alone.removeprefix(prefixes["system"]).removesuffix(suffixes["system"])
    stop = suffixes["assistant"].strip()
    return ChatTemplate(
        name=name,
        default_system_prompt=default or None,  # SGLang's own templates hold None too
        role_prefix_and_suffix={role: (prefixes[role], suffixes[role]) for role in ROLES},
        stop_str=[stop] if stop else [],
    )


def _between(text: str, left: str, right: str) -> str:
    return text.partition(left)[2].partition(right)[0]


def _rebuilds(template: ChatTemplate, source: str, settings: dict[str, Any]) -> bool:
    """Whether the cut template gives the same text as the Jinja one, with and without a system message."""
    turns = [("user", "One?"), ("assistant", "Two."), ("user", "Three?"), ("assistant", "Four.")]
    said = [{"role": role, "content": content} for role, content in turns]
    for head in ([{"role": "system", "content": "Be brief."}], []):
        default = template.default_system_prompt
        ours = head or ([{"role": "system", "content": default}] if default else [])
        if template.get_prompt(ours + said) != _render(source, settings, head + said):
            return False
    return True
