"""The catalogue names tests that exist, and its page is current."""

import ast
from pathlib import Path

from tests.cases.catalogue import CATALOGUE, OTHER
from tests.cases.page import PAGE, page

TESTS = Path(__file__).parents[1]


def test_every_case_names_tests_that_exist() -> None:
    for case in CATALOGUE:
        assert case.tests or (case.outcome == OTHER and case.note), case
        for test in case.tests:
            file, _, name = test.partition("::")
            tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
            names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert not name or name in names, f"{case.number}: {test} does not exist"


def test_each_number_is_there_once() -> None:
    numbers = [case.number for case in CATALOGUE]
    assert len(set(numbers)) == len(numbers) == 78


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.cases.page"
