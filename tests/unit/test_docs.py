"""Pages that are written from the code are up to date."""

from pathlib import Path

from sgl_spec import knobs

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tuning_page_lists_the_knobs_as_they_are():
    assert (DOCS / "tuning.md").read_text() == knobs.page()
