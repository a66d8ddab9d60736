"""Files that a library writes for their owner alone, with the rights of any other new file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE


@contextmanager
def usual_rights(path: Path) -> Iterator[None]:
    """Give `path`, written within, the rights that the umask gives to a new file; safetensors writes mode 600."""
    path.touch()
    rights = S_IMODE(path.stat().st_mode)
    yield
    path.chmod(rights)
