"""Make `docs/cases.md` of the catalogue: `python -m tests.cases.page` writes it."""

from pathlib import Path

from tests.cases.catalogue import CATALOGUE, OTHER, REFUSED, RIGHT

PAGE = Path(__file__).parents[2] / "docs" / "cases.md"


def page() -> str:
    """Return the page's text."""
    counts = {outcome: sum(case.outcome == outcome for case in CATALOGUE) for outcome in (RIGHT, REFUSED, OTHER)}
    lines = [
        "# Cases",
        "",
        "Public reports of faults in speculative decoding, tried here. Made by `python -m tests.cases.page`.",
        f"{counts[RIGHT]} right, {counts[REFUSED]} refused with a reason, {counts[OTHER]} not applicable or not tried.",
        "",
        "| case | seen in | fault | here | tested by |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in CATALOGUE:
        tests = "<br>".join(f"`{test}`" for test in case.tests)
        outcome = f"{case.outcome}: {case.note}" if case.note else case.outcome
        lines.append(f"| {case.number} | {case.seen_in} | {case.fault} | {outcome} | {tests} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
