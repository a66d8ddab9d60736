"""What it takes to run rows, as names and addresses only, so that it may travel to another machine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The program by name, the servers by address; `retries` are further attempts per row."""

    program: str
    urls: tuple[str, ...]
    api_key: str | None = None
    retries: int = 4
    stats: bool = False
