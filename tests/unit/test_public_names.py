"""The names that users import, and that importing the package stays light."""

import subprocess
import sys

import sgl_spec


def test_every_public_name_is_there():
    for name in sgl_spec.__all__:
        assert getattr(sgl_spec, name) is not None


def test_options_stays_a_context_manager_when_used_twice():
    for _ in range(2):
        with sgl_spec.options(program="x"):
            pass


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("torch", "sglang", "transformers", "pydantic")
    code = f"import sgl_spec, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
