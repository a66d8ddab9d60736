"""What is known of the installed SGLang without importing it (an import of its server takes ten seconds)."""

import ast
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from sgl_spec.errors import UpstreamError

VERSION = "0.5.23"


def installed_version() -> str:
    """Return SGLang's version; raises UpstreamError if it is not installed."""
    try:
        return distribution("sglang").version
    except PackageNotFoundError:
        raise UpstreamError(f"sglang is not installed: pip install sglang=={VERSION}") from None


@lru_cache(maxsize=1)
def server_argument_names() -> frozenset[str]:
    """Return the names of SGLang's server arguments, read from its source."""
    path = Path(str(distribution("sglang").locate_file("sglang/srt/arg_groups/field_order.py")))
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "POSITIONAL_FIELD_ORDER":
            return frozenset(ast.literal_eval(node.value))
    raise UpstreamError(
        f"sglang {installed_version()} does not list its server arguments where {VERSION} does"
    )
