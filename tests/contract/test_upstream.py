"""What we rely on in SGLang is there, and what is not would be noticed."""

import os

import pytest

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")


@pytest.fixture(scope="module")
def compat():
    import sglang  # noqa: F401 - installs the stand-in kernels

    from sgl_spec.sglang_plugin import compat

    return compat


def test_every_touched_symbol_is_there(compat):
    compat.check()
    compat.check(compat.TOUCHED_BY_HTTP)
    compat.check(compat.TOUCHED_BY_STANDALONE)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("sglang.srt.speculative.spec_utils:no_such_function", ()),
        ("sglang.srt.speculative.spec_utils:draft_tp_context", ("renamed",)),
    ],
)
def test_a_changed_symbol_is_refused_by_name(compat, monkeypatch, name, wanted):
    from sgl_spec.errors import UpstreamError

    monkeypatch.setitem(compat.TOUCHED, name, wanted)
    with pytest.raises(UpstreamError, match=name.split(":")[1]):
        compat.check()


def test_the_algorithm_has_every_method_of_sglangs_own(compat):
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sgl_spec.sglang_plugin.algorithm import SglSpecAlgorithm

    public = {name for name, value in vars(SpeculativeAlgorithm).items() if callable(value) and name[0] != "_"}
    assert public - {"from_string", "register"} <= set(dir(SglSpecAlgorithm))


def test_the_version_that_is_installed_is_the_pinned_one():
    from sgl_spec import upstream

    assert upstream.installed_version() == upstream.VERSION
    assert {
        "model_path",
        "speculative_draft_model_path",
        "max_running_requests",
    } <= upstream.server_argument_names()


def test_what_the_start_leaves_for_later_is_where_it_is_expected():
    """The fewer imports of `cpu_transformers` rest on these functions and on the modules that they mend."""
    import inspect

    import transformers
    from sglang.srt.utils import hf_transformers_patches
    from transformers.utils import import_utils

    from sgl_spec.sglang_plugin import cpu_transformers

    for name, target in cpu_transformers.PATCHED_WHEN_IMPORTED.items():
        kept = getattr(hf_transformers_patches, name)
        assert kept.args[0] == target, name
        words = inspect.getsource(kept.args[1])
        package, _, module = target.rpartition(".")
        assert f"from {package} import {module}" in words or target in words
    assert isinstance(import_utils.PACKAGE_DISTRIBUTION_MAPPING, cpu_transformers.Distributions)
    from transformers.loss import loss_for_object_detection

    assert loss_for_object_detection.linear_sum_assignment is cpu_transformers.linear_sum_assignment
    assert loss_for_object_detection.is_scipy_available is transformers.utils.is_scipy_available
    assert [part.tolist() for part in cpu_transformers.linear_sum_assignment([[3, 1], [1, 3]])] == [[0, 1], [1, 0]]
    folder = os.path.join(os.path.dirname(import_utils.__file__), "..", "models", "llama")  # noqa: PTH118, PTH120
    scan = import_utils.create_import_structure_from_path
    assert scan(folder) == scan.__wrapped__(folder)


def test_the_http_server_sleeps_once_before_each_look():
    import inspect

    from sglang.srt.entrypoints import http_server

    assert inspect.getsource(http_server._execute_server_warmup).count("time.sleep(1)") == 1
    assert http_server._execute_server_warmup.__globals__ is vars(http_server)
