"""`sgl-spec serve`: every option of SGLang and of sgl-spec, on the command line or in a YAML file."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sgl_spec.config import SpecConfig, shown
from sgl_spec.console import people
from sgl_spec.errors import ConfigError

SHORT = {"model": "model_path", "tp": "tp_size", "dp": "dp_size", "pp": "pp_size", "ep": "ep_size"}
# SGLang's server in a fresh interpreter: thread counts must be set before torch is imported.
START = "import sys; from sgl_spec.sglang_plugin.server import run; run(sys.argv[1:])"


def serve(
    ctx: typer.Context,
    *,
    config: Annotated[Path | None, typer.Option(help="YAML file with the same options, as name: value.")] = None,
    check: Annotated[bool, typer.Option(help="Check everything, print SGLang's command line, and end.")] = False,
) -> None:
    """Start a server: each option of SGLang and of sgl-spec, --name value.

    Options on the command line win over those of the file.

    \b
    Examples:
      sgl-spec serve --model-path TARGET --draft-model-path DRAFT --port 30000
      sgl-spec serve --config server.yaml --num-speculative-tokens 8 --controller fixed
      sgl-spec serve --model-path TARGET --check
    """
    from sgl_spec.serve import plan_launch

    values = (read_yaml(config) if config else {}) | parse_options(ctx.args)
    if "model_path" not in values:
        raise ConfigError("serve needs --model-path: the folder or hub name of the target model.")
    launch = plan_launch(values)
    out = people(json_output=True)
    for change in launch.changed:
        out.print(f"set here: {change}")
    if check:
        people().print(" ".join(["python -m sglang.launch_server", *launch.arguments]))
        return
    out.print(f"starting on {launch.url}")
    sys.stderr.flush()
    os.execve(  # noqa: S606 - our own interpreter, no shell
        sys.executable, [sys.executable, "-c", START, *launch.arguments], launch.environment
    )


serve.context_settings = {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[attr-defined]


def read_yaml(path: Path) -> dict[str, Any]:
    """Options of a YAML file, with dashes or underscores in their names."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"config={path} cannot be read ({error.strerror}): name a YAML file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config={path} is not YAML ({error}): correct it.") from None
    loaded = _from_yaml(f"config={path}", text)
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError(f"config={path} must hold options as name: value.")
    return {_name(key): value for key, value in loaded.items()}


def _from_yaml(what: str, text: str) -> Any:
    """The plain data in a YAML text; nothing of it is ever run. Raises ConfigError with one sentence."""
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML lets a scalar under the wrong tag raise whatever it hits
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{what} is not YAML ({reason}): correct it.") from None


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value`, `--name a b` (a list) and `--name` (True) as a dictionary."""
    values: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = _name(flag)
            values[name] = _typed(name, value) if equals else True
        elif not name:
            raise ConfigError(f"{shown(word)} follows no option: write --model-path before it if it is the target.")
        elif values[name] is True:
            values[name] = _typed(name, word)
        else:
            previous = values[name] if isinstance(values[name], list) else [values[name]]
            values[name] = [*previous, _typed(name, word)]
    return values


def _name(flag: str) -> str:
    name = flag.replace("-", "_")
    return SHORT.get(name, name)


def _typed(name: str, text: str) -> Any:
    """`text` as its option wants it: ours by its field, SGLang's as written but for whole numbers."""
    field = SpecConfig.model_fields.get(name)
    if field is not None:
        wants_text = any(word in str(field.annotation) for word in ("str", "Literal"))
        return text if wants_text else _from_yaml(f"{name}={shown(text)}", text)
    if name == "port" and not text.isdigit():
        raise ConfigError(f"port={text!r} is no port number: use one between 1 and 65535.")
    return int(text) if text.isdigit() and str(int(text)) == text else text
