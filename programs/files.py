"""Text files of the programs: read whole, written whole."""

import os
from pathlib import Path

from sgl_spec.errors import ConfigError


def read_text(path: Path, option: str) -> str:
    """Return a file's text; raises ConfigError that names the option it was given for."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{option}={path} is no UTF-8 text: name a text file.") from None
    except OSError as error:
        raise ConfigError(f"{option}={path} cannot be read ({error.strerror}): name an existing file.") from None


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text and keep its mode and line ends; a kill leaves the old text or the new one."""
    newline = "\r\n" if b"\r\n" in path.read_bytes() else "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8", newline=newline) as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    part.chmod(path.stat().st_mode & 0o7777)
    part.replace(path)
