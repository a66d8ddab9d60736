"""The memory plan as text for people."""

from sgl_spec.advise.article import ArticlePlan
from sgl_spec.advise.families import known_models
from sgl_spec.advise.plan import Plan
from sgl_spec.advise.suggest import Suggestion
from sgl_spec.console import emit, people, table


def print_plan(made: Plan, json_output: bool) -> None:
    """Print lines, sums, whether it fits, and the notes."""
    out = people(json_output)
    rows = [(line.name, f"{line.gb:.2f}", f"{line.gb_per_device:.2f}", line.how) for line in made.lines]
    rows.append(("total", f"{made.total_gb:.2f}", f"{made.total_gb_per_device:.2f}", ""))
    out.print(table(made.title, ("line", "GB", "per device", "how"), rows, numbers=(1, 2)))
    if made.draft_percent:
        out.print(f"\nThe draft adds {made.draft_percent:.1f}% to {made.without_draft_gb:.2f} GB.")
    if made.fits is not None:
        verb = "fits in" if made.fits else "does not fit in"
        out.print(f"It {verb} {made.memory_gb:g} GB per device.")
    for note in made.notes:
        out.print(f"- {note}")


def print_changes(changes: list[Suggestion], json_output: bool) -> None:
    """Print one line per change, its flags last, ready to copy."""
    if not changes:
        return
    out = people(json_output)
    out.print("\nWhat would help (GB saved per device):")
    for change in changes:
        enough = "enough alone" if change.enough else "not enough alone"
        out.print(f"  {change.saves_gb_per_device:7.2f}  {enough:16}  {change.price}: {change.flags}")


def print_article(article: ArticlePlan, json_output: bool) -> None:
    """Print the article's figures beside the computed ones, then what holds and what does not."""
    out = people(json_output)
    rows = []
    for line in article.lines:
        computed = article.recomputed.line(line.name).gb
        rows.append((line.name, f"{line.gb:g}", f"{computed:.1f}", line.how))
    rows.append(
        (
            "total",
            f"{article.total_gb:g}",
            f"{article.recomputed.total_gb:.1f}",
            "(computed: with graphs and runtime)",
        )
    )
    out.print(table(article.title, ("line", "article GB", "computed GB", "the article's reason"), rows, numbers=(1, 2)))
    out.print("")
    for text in article.verdict:
        out.print(f"- {text}")
    for percentage in article.percentages:
        out.print(f"- +{percentage.claimed}% could be " + "; or ".join(percentage.matches) + ".")


def print_models(json_output: bool) -> None:
    """Print the table of known models."""
    models = known_models()
    rows = [(m.family, m.shape.name, f"{m.published:g}", str(m.shape.context), m.licence) for m in models]
    people(json_output).print(
        table("known models", ("family", "name", "1e9", "context", "licence"), rows, numbers=(2, 3))
    )
    if json_output:
        emit(
            {"models": [{"family": m.family, "licence": m.licence, **m.shape.model_dump(mode="json")} for m in models]}
        )
