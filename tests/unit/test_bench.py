"""The benchmarks' common parts on a fake server: turns, cold keys, ratios, results, cards, prompts, edits."""

import ast
import difflib
import json

import httpx
import pytest

from sgl_spec.bench.ab import PLAIN, Arm, ask_in_turn, mean_ratio, ratio, summary
from sgl_spec.bench.concurrency import percentile
from sgl_spec.bench.edits import copy_task, edits, some_edits
from sgl_spec.bench.engine import pair
from sgl_spec.bench.load import Answer, Ask, Client
from sgl_spec.bench.options import card, finish
from sgl_spec.bench.provenance import command_line, provenance
from sgl_spec.bench.result import Result, read_results
from sgl_spec.bench.workloads import requests
from sgl_spec.cli import main
from sgl_spec.console import people
from sgl_spec.errors import ConfigError, EngineError


def answer(tokens: int, seconds: float, **spec: int) -> Answer:
    return Answer(seconds, [{"sgl_spec": spec}], [list(range(tokens))], ["x"])


class Fake:
    """Keeps what it is asked, and says two tokens per prompt."""

    def __init__(self, status: int = 200) -> None:
        self.seen: list[dict] = []
        self.client = Client("http://fake")
        self.client.http = httpx.Client(base_url="http://fake", transport=httpx.MockTransport(self.answer))
        self.status = status

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.seen.append(body)
        one = {"text": "ab", "output_ids": [1, 2], "meta_info": {"sgl_spec": {"num_plain_steps": 2}}}
        return httpx.Response(self.status, json=[one] * len(body["text"]))


ARMS = (Arm("plain", PLAIN), Arm("all", {}), Arm("K=1", {"num_speculative_tokens": 1}))


def test_arms_take_turns_and_stay_cold():
    fake = Fake()
    answers = ask_in_turn(fake.client, ARMS, ["one", "two", ["three", "four"]], Ask(2), run="chat")
    names = [body["extra_key"][0] for body in fake.seen]
    assert names[:3] == ["chat/plain", "chat/all", "chat/K=1"]
    assert names[3:6] == ["chat/all", "chat/K=1", "chat/plain"]
    options = [body["sampling_params"][0]["custom_params"]["sgl_spec"] for body in fake.seen]
    assert [one["namespace"] for one in options] == names
    assert options[0]["speculate"] is False
    assert [a.tokens for a in answers["all"]] == [2, 2, 4]


def test_keys_and_options_may_differ_within_a_call():
    fake = Fake()
    fake.client.ask(["a", "b"], [{"program": "x"}, {"program": "y"}], Ask(2), key=["k", "l"])
    body = fake.seen[0]
    assert body["extra_key"] == ["k", "l"]
    assert [one["custom_params"]["sgl_spec"]["program"] for one in body["sampling_params"]] == ["x", "y"]


def test_a_refusal_is_one_sentence():
    with pytest.raises(EngineError, match="refused a request"):
        Fake(status=400).client.ask("a", None, Ask(2))


def test_a_ratio_is_one_of_rates_with_an_interval_around_it():
    fast, slow = [answer(10, 1.0), answer(20, 2.0)], [answer(10, 2.0), answer(20, 5.0)]
    found = ratio(fast, slow)
    assert found.value == pytest.approx((30 / 3) / (30 / 7))
    assert found.low <= found.value <= found.high
    assert 2.0 <= found.low <= found.high <= 2.5
    assert ratio(fast, slow) == found  # the resamples are the same each time
    assert mean_ratio([(fast, slow), (slow, fast)]).value == pytest.approx(1.0)


def test_one_call_has_no_interval():
    assert set(ratio([answer(10, 1.0)], [answer(10, 2.0)])) == {2.0}


def test_a_row_counts_guesses():
    row = summary(
        [answer(4, 1.0, num_draft_tokens=4, num_accepted_draft_tokens=2, num_spec_steps=1, num_plain_steps=1)],
        [answer(4, 2.0)],
    )
    assert row["acceptance_rate"] == 0.5
    assert row["tokens_per_step"] == 2.0
    assert row["plain_share"] == 0.5
    assert row["ratio_to_plain"] == 2.0
    assert row["same_ids"] is True


def test_results_are_written_and_read(tmp_path, capsys):
    result = finish(
        people(), "demo", "a / b", (1.5, 1.4, 1.6), [{"arm": "a", "same": True, "x": None}], json_output=True
    )
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"name", "ratio", "spread", "rows", "provenance"} <= printed.keys()
    result.save(tmp_path)
    assert read_results(tmp_path) == [result]
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"broken\.json is no benchmark result"):
        read_results(tmp_path)
    with pytest.raises(ConfigError, match="holds no results"):
        read_results(tmp_path / "none")


def test_a_card_has_a_column_per_key():
    made = Result(
        name="x", meaning="m", ratio=1, spread=(1, 1), rows=[{"a": 1, "b": True}, {"a": 2, "c": [1, 2]}],
        provenance=provenance(),
    )  # fmt: skip
    assert [column.header for column in card(made).columns] == ["a", "b", "c"]


def test_provenance_names_no_folder():
    assert (
        command_line(["/x/cli.py", "bench", "speedup", "--target", "/models/a"]) == "sgl-spec bench speedup --target a"
    )
    made = provenance(3)
    assert made.threads == 3
    assert made.versions["torch"]
    assert made.machine["cores"] >= 1


@pytest.mark.parametrize("task", ["chat", "code", "summarization", "creative"])
def test_no_prompt_is_repeated(task):
    found = requests(task, 30)
    assert len(set(found)) == 30


def test_percentiles_lie_between_neighbours():
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentile([1.0, 2.0], 95) == pytest.approx(1.95)
    assert percentile([4.0], 99) == 4.0


def test_wrong_amounts_are_one_sentence():
    with pytest.raises(ConfigError, match="prompts=999 is not possible: chat has 40"):
        requests("chat", 999)
    with pytest.raises(ConfigError, match="no workload 'x'"):
        requests("x", 1)
    with pytest.raises(ConfigError, match="there are 20 edits"):
        some_edits(21)
    with pytest.raises(ConfigError, match="--target is given without --draft"):
        pair("somewhere", None)


def test_edits_are_small_changes_of_real_files():
    assert len(edits()) == 20
    for edit in edits():
        ast.parse(edit.old)
        ast.parse(edit.new)
        lines = edit.old.splitlines()
        assert 40 <= len(lines) <= 200
        changes = [line[:2] for line in difflib.ndiff(lines, edit.new.splitlines())]
        assert 1 <= max(changes.count("+ "), changes.count("- ")) <= 10
    assert len({edit.name for edit in some_edits(6)}) == 6


def test_a_copy_goes_on_where_its_prediction_begins():
    for edit in edits():
        prompt, expected = copy_task(edit)
        begun = prompt.rpartition(", a copy\n")[2]
        assert prompt.count(edit.new) == 2, "the file and a copy, before the one to be written"
        assert edit.new.startswith(begun)
        assert begun + expected == edit.old


def test_the_pages_show_goals_and_rows(tmp_path, capsys):
    rows = [{"task": "chat", "arm": "plain", "ratio_to_plain": 1.0, "spread": [0.9, 1.1]}]
    made = provenance()
    folder = tmp_path / "results"
    for name, ratio_found in (("speedup", 1.2), ("verify-cost", 1.1)):
        Result(name=name, meaning="a / b", ratio=ratio_found, spread=(1, 2), rows=rows if name == "speedup" else [],
               provenance=made).save(folder)  # fmt: skip
    assert main(["bench", "report", "--folder", str(tmp_path)]) == 0
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| speedup | 1.200 | 1.000 to 2.000 | >= 1.8 | NO | a / b |" in page
    assert "| verify-cost | 1.100 | 1.000 to 2.000 | <= 1.25 | yes | a / b |" in page
    assert "<svg" in (tmp_path / "RESULTS.html").read_text()
    assert main(["bench", "report", "--folder", str(tmp_path / "none")]) == 2
    assert "holds no results" in capsys.readouterr().err
