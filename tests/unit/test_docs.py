"""Pages that are written from the code are up to date."""

from pathlib import Path

from sgl_spec import cli_reference, knobs

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tuning_page_lists_the_knobs_as_they_are():
    assert (DOCS / "tuning.md").read_text() == knobs.page()


def test_the_command_line_page_lists_the_options_as_they_are():
    assert (DOCS / "cli.md").read_text() == cli_reference.page(), "python -m sgl_spec.cli_reference > docs/cli.md"
