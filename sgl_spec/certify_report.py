"""The certificate: what was compared, with which versions, and every doubt; as JSON and as Markdown."""

from pathlib import Path

from pydantic import BaseModel

from sgl_spec.bench.provenance import Provenance
from sgl_spec.certify_law import BIAS, LawTest
from sgl_spec.certify_parity import Parity


class Certificate(BaseModel):
    """All checks of one pair. It is lossless as far as tested if there is no doubt."""

    target: str
    draft: str
    parity: list[Parity]
    options: list[Parity]
    law: list[LawTest]
    doubts: list[str]
    remarks: list[str]
    provenance: Provenance

    @property
    def passed(self) -> bool:
        """Whether nothing is in doubt."""
        return not self.doubts

    def write(self, stem: Path) -> tuple[Path, Path]:
        """Write ``<stem>.json`` and ``<stem>.md``; returns both paths."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        data, page = stem.with_suffix(".json"), stem.with_suffix(".md")
        data.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        page.write_text(markdown(self), encoding="utf-8")
        return data, page


def doubts_of(parity: list[Parity], options: list[Parity], law: list[LawTest]) -> tuple[list[str], list[str]]:
    """(doubts, remarks): a doubt is anything that speaks against losslessness, or a check that checked nothing."""
    doubts = [
        f"{check.name}: {check.answers - check.equal} of {check.answers} answers differ, {check.first_difference}"
        for check in [*parity, *options]
        if not check.passed
    ]
    doubts += [
        f"{test.name} at temperature {test.temperature:g}: chi-square {test.statistic} is above {test.threshold} "
        f"(p = {test.p_value:.2g})"
        for test in law
        if not test.passed
    ]
    if not sum(check.proposed for check in parity):
        doubts.append("no token was proposed in any comparison: the draft did not run")
    doubts += [f"{test.name}: no token was proposed" for test in law if not test.proposed]
    remarks = [
        f"{test.name} at temperature {test.temperature:g}: no guess was accepted, so only replacements were tested"
        for test in law
        if test.proposed and not test.accepted
    ]
    return doubts, remarks


def markdown(certificate: Certificate) -> str:
    """The certificate as a page."""
    made = certificate.provenance
    verdict = "PASSED: no doubt" if certificate.passed else f"FAILED: {len(certificate.doubts)} doubt(s)"
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    lines = [
        f"# {certificate.draft} for {certificate.target}: {verdict}",
        "",
        f"{made.date}, commit {made.commit}, {versions}, {made.machine['processor']}, {made.threads} thread(s).",
        f"Command: `{made.command}`",
        "",
        *[f"- **Doubt.** {doubt}" for doubt in certificate.doubts],
        *[f"- Remark. {remark}" for remark in certificate.remarks],
        "",
        "## Greedy parity with plain decoding by the same engine",
        "",
        "| guesses from | equal answers | accepted of proposed |",
        "| --- | --- | --- |",
        *[f"| {c.name} | {c.equal} of {c.answers} | {c.accepted} of {c.proposed} |" for c in certificate.parity],
        "",
        "## Request options",
        "",
        "Greedy parity under each option, and whether speculation stays on.",
        "",
        "| option | equal | speculation |",
        "| --- | --- | --- |",
        *[f"| {c.name} | {'yes' if c.passed else 'NO'} | {_speculation(c)} |" for c in certificate.options],
        "",
        "A custom logit processor also switches speculation off (it may keep state); the request's statistics say so.",
        "",
        "## Law of sampled tokens",
        "",
        f"Joint law of three tokens; power is the chance to see an error of {BIAS:.0%} of the probability mass.",
        "",
        "| guesses from | temperature | draws | chi-square | threshold | p | power | accepted of proposed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *[
            f"| {t.name} | {t.temperature:g} | {t.draws} | {t.statistic} | {t.threshold} | {t.p_value:.3g} "
            f"| {t.power} | {t.accepted} of {t.proposed} |"
            for t in certificate.law
        ],
    ]
    return "\n".join(lines) + "\n"


def _speculation(check: Parity) -> str:
    if check.why_not:
        return f"off: {check.why_not}"
    return f"on ({check.accepted} of {check.proposed} accepted)" if check.proposed else "on, nothing proposed"
