"""The table of knobs in docs/tuning.md, from `sgl_spec.config`: ``python -m sgl_spec.knobs > docs/tuning.md``."""

from typing import Any

from sgl_spec.config import RequestOptions, SpecConfig

INTRO = """# Tuning

There is normally nothing to tune: the controller measures what a guess costs and how often it is right, per
program and per request, and guesses as much as pays, often nothing. These knobs are for tests, for limits and for
people who know more than the controller can. `python -m sgl_spec.knobs` writes this page from the code.
"""
SERVER = """
## Of a server

`sgl_spec.Runtime(name=value)`, `sgl-spec serve --name value`, or a line `name: value` in the file that
`sgl-spec serve --config FILE` reads. Every server argument of SGLang may stand beside them.
"""
REQUEST = """
## Of a request

`with sgl_spec.options(name=value):` around a run or inside a program;
`"sampling_params": {"custom_params": {"sgl_spec": {"name": value}}}` on `/generate`;
`extra_body={"custom_params": {"sgl_spec": {"name": value}}}` with the OpenAI client.
"""


def rows(model: Any) -> str:
    """Return the Markdown table of a settings class."""
    lines = ["| name | default | range | what it does |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{field.default!r}`"
        bounds = {type(m).__name__: m for m in field.metadata}
        low = getattr(bounds.get("Ge"), "ge", None)
        high = getattr(bounds.get("Le"), "le", None)
        span = f"{low} to {high}" if low is not None and high is not None else ""
        choices = getattr(field.annotation, "__args__", ()) if "Literal" in repr(field.annotation) else ()
        if choices:
            span = ", ".join(str(c) for c in _flat(choices) if c is not type(None))
        lines.append(f"| `{name}` | {default} | {span} | {field.description} |")
    return "\n".join(lines)


def _flat(choices: tuple[Any, ...]) -> list[Any]:
    flat = []
    for choice in choices:
        flat += list(choice.__args__) if hasattr(choice, "__args__") else [choice]
    return flat


def page() -> str:
    """Return docs/tuning.md."""
    return f"{INTRO}{SERVER}\n{rows(SpecConfig)}\n{REQUEST}\n{rows(RequestOptions)}\n"


if __name__ == "__main__":
    print(page(), end="")
