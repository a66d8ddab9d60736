"""The doctor's rules, one reason per kind of trouble, and its bad input."""

import json

import pytest

from sgl_spec.cli import main
from sgl_spec.doctor_reason import diagnose
from sgl_spec.upstream import VERSION

LOCAL = {
    "sglang": VERSION,
    "hooks": {"a:b": True},
    "accelerator": False,
    "cpu_kernels": None,
    "cores_allowed": 2,
    "omp_num_threads": 1,
    "load_per_core": 0.5,
}
STATS = {
    "requests": 10,
    "rounds": 1000,
    "plain_share": 0.2,
    "draft_acceptance_rate": 0.6,
    "tokens_per_step": 2.5,
    "not_speculated": {},
}
SERVER = {"stats": STATS, "kv_slots": 1000, "kv_slots_free": 900, "running": 0}


@pytest.mark.parametrize(
    ("local", "server", "says"),
    [
        ({"sglang": "0.1"}, SERVER, "built for"),
        ({"hooks": {"a:b": False}}, SERVER, "entry point a:b"),
        ({"cpu_kernels": "no compiler"}, SERVER, "no compiler"),
        ({}, {**SERVER, "stats": None}, "without sgl-spec"),
        ({}, {**SERVER, "stats": {**STATS, "not_speculated": {"speculate=False": 10}}}, "speculate=False"),
        ({}, {**SERVER, "running": 3, "kv_slots_free": 10}, "10 of 1000 KV slots"),
        ({"load_per_core": 3.0}, SERVER, "busy"),
        ({"omp_num_threads": 8}, SERVER, "above the 2 cores"),
        ({}, {**SERVER, "stats": {**STATS, "draft_acceptance_rate": 0.03}}, "mostly wrong"),
        ({}, {**SERVER, "stats": {**STATS, "plain_share": 0.98}}, "did not pay"),
        ({}, {**SERVER, "stats": {**STATS, "rounds": 3}}, "Too little"),
        ({}, SERVER, "2.50 tokens per pass"),
        ({}, None, "Nothing is wrong with the installation"),
    ],
)
def test_one_reason(local, server, says):
    found = diagnose({**LOCAL, **local}, server)
    assert says in found.reason
    assert found.remedy.endswith(".")


def test_bad_addresses_are_one_sentence(capsys):
    assert main(["doctor", "localhost"]) == 2
    assert (
        capsys.readouterr().err == "sgl-spec: url='localhost' is no address: give one such as http://127.0.0.1:30000.\n"
    )
    assert main(["doctor", "http://127.0.0.1:9"]) == 1
    assert "No SGLang server answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_this_machine(capsys):
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["server"] is None
    assert document["local"]["sglang"] == VERSION
    assert document["reason"]
