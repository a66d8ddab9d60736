"""The certificate's checks on a fake engine that samples rightly, or not, and its doubts."""

import math
import random

import pytest

from sgl_spec.bench.load import Answer, Ask
from sgl_spec.bench.provenance import provenance
from sgl_spec.certify_law import DRAWN, TOP, check_law, exact_law, joint_law
from sgl_spec.certify_parity import Parity, check_options, check_ways
from sgl_spec.certify_report import Certificate, doubts_of, markdown
from sgl_spec.cli import main

SPEC = {"num_draft_tokens": 3, "num_accepted_draft_tokens": 1, "reason_not_speculated": None}


class FakeEngine:
    """Its law depends on the last token; `wrong` makes it forget the temperature after the first token."""

    def __init__(self, wrong: bool = False, differs: bool = False) -> None:
        self.wrong, self.differs, self.chance = wrong, differs, random.Random(1)

    def best(self, last: int) -> list[tuple[float, int]]:
        weights = [1.0 + (last * 7 + token * 3) % 5 for token in range(TOP)]
        return [(math.log(w / sum(weights)), token) for token, w in enumerate(weights)]

    def post(self, body: dict) -> dict:
        return {"meta_info": {"output_top_logprobs": [[(p, t, None) for p, t in self.best(body["input_ids"][-1])]]}}

    def ask_ids(self, prompts: list[list[int]], options: dict, how: Ask) -> Answer:
        rows = [self.draw(list(ids), how) for ids in prompts]
        return Answer(0.1, [{"sgl_spec": SPEC} for _ in rows], rows, [""] * len(rows))

    def draw(self, ids: list[int], how: Ask) -> list[int]:
        out: list[int] = []
        for at in range(how.max_new_tokens):
            hot = 1.0 if self.wrong and at else how.temperature
            best = self.best((ids + out)[-1])
            out += self.chance.choices([t for _, t in best], [math.exp(p / hot) for p, _ in best])
        return out

    def ask(self, prompts, options, how, key=None) -> Answer:
        texts = [prompts] if isinstance(prompts, str) else prompts
        plain = options.get("speculate") is False
        ids = [[len(text), 1, 2 if plain or not self.differs else 3] for text in texts]
        meta = {"sgl_spec": {} if plain else SPEC}
        return Answer(0.1, [meta] * len(texts), ids, [""] * len(texts))


def test_the_exact_law_covers_every_outcome():
    law = exact_law(FakeEngine(), [1])
    for temperature in (0.7, 1.3):
        joint = joint_law(law, temperature)
        assert len(joint) == TOP**DRAWN
        assert sum(joint.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.4, 1.5])
def test_a_right_sampler_passes_and_a_wrong_one_does_not(temperature):
    for wrong in (False, True):
        engine = FakeEngine(wrong)
        law = exact_law(engine, [1])
        test = check_law(engine, "fake", [1], law, temperature, draws=4000, alpha=1e-6)
        assert test.passed is not wrong
        assert test.power > 0.9


def test_equal_ids_pass():
    checks = check_ways(FakeEngine(), ["a", "bb"], 3) + check_options(FakeEngine(), "a", 3)
    assert all(check.passed for check in checks)
    assert doubts_of(checks, [], []) == ([], [])


def test_a_difference_is_a_doubt_with_its_place():
    checks = check_ways(FakeEngine(differs=True), ["a", "bb"], 3)
    doubts, _ = doubts_of(checks, [], [])
    assert len(doubts) == len(checks)
    assert "at token 2 after 'a': plain [2], with guesses [3]" in doubts[0]


def test_checks_that_checked_nothing_are_doubts():
    idle = Parity(name="x", answers=1, equal=1, proposed=0, accepted=0)
    assert doubts_of([idle], [], [])[0] == ["no token was proposed in any comparison: the draft did not run"]


def test_the_page_says_what_was_found():
    off = Parity(name="speculate=False", answers=1, equal=1, proposed=0, accepted=0, why_not="speculate=False")
    page = markdown(
        Certificate(
            target="t", draft="d", parity=[], options=[off], law=[], doubts=["odd"], remarks=[], provenance=provenance()
        )
    )
    assert page.startswith("# d for t: FAILED: 1 doubt(s)")
    assert "| speculate=False | yes | off: speculate=False |" in page


def test_bad_input_is_one_sentence(capsys, tmp_path):
    assert main(["certify", str(tmp_path / "none"), str(tmp_path)]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["certify", str(tmp_path), str(tmp_path), "--alpha", "3"]) == 2
    assert "alpha=3.0 is no chance of a false alarm" in capsys.readouterr().err
