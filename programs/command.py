"""How a program becomes a command: failures as one sentence, the exit statuses of `sgl-spec`."""

import sys
from typing import Any

import httpx
import typer
from typer.main import get_command

from sgl_spec.batch.endpoint import is_connection, reason
from sgl_spec.errors import ConfigError, SpecError

_UsageError: type[Exception] = typer.BadParameter.__mro__[2]  # typer keeps a private copy of click


def run(app: typer.Typer, name: str, arguments: list[str] | None = None) -> int:
    """Run `python -m programs.NAME ARGUMENTS` and return 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        result = get_command(app).main(arguments, prog_name=f"python -m programs.{name}", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except ConfigError as error:
        return _fail(name, str(error), 2)
    except SpecError as error:
        return _fail(name, str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(name, "interrupted", 130)
    except _UsageError as error:
        message: Any = error
        return _fail(name, message.format_message(), 2)
    except (OSError, httpx.HTTPError) as error:
        return _fail(name, _plain(error), 1)


def _plain(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    if is_connection(error) or isinstance(error, httpx.HTTPError):
        cause = reason(error) if isinstance(error, OSError) else str(error)
        return f"The connection to the server broke ({cause}): is it still running?"
    return str(error)


def _fail(name: str, message: str, status: int) -> int:
    sys.stderr.write(f"{name}: {message}\n")
    return status
