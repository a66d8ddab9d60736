"""What runs in the peers' processes, with stand-ins for their engines; how their environments are made."""

import io
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sgl_spec.bench.peers import environments, wire
from sgl_spec.bench.peers.environments import PEERS, Peer
from sgl_spec.bench.peers.wire import Loaded
from sgl_spec.draft.model import IDS_FILE
from sgl_spec.errors import EngineError

JOB = {"target": "T", "draft": "D", "target_gguf": "t.gguf", "draft_gguf": "d.gguf", "threads": 2, "batch": ["x"] * 3}


def served(monkeypatch: Any, capfd: Any, load: Any, *questions: Any) -> list[Any]:
    """The answers on stdout to these questions on stdin."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(one) + "\n" for one in questions)))
    kept = os.dup(1)
    try:
        wire.serve(load)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_a_script_answers_one_line_per_question_and_keeps_what_is_printed_out_of_it(monkeypatch, capfd):
    def load(job):
        os.write(1, b"loading\n")
        return Loaded(f"fake {job['target']}", lambda mode, texts, tokens: (tokens, [mode, *texts]), {"plain": [1]})

    question = {"mode": "plain", "texts": ["a"], "tokens": 5}
    ready, answer = served(monkeypatch, capfd, load, JOB, question)
    assert ready == {"engine": "fake T", "modes": {"plain": [1]}, "failed": {}}
    assert (answer["tokens"], answer["texts"]) == (5, ["plain", "a"])
    assert answer["seconds"] >= 0.0


def test_what_an_engine_raises_is_answered_and_ends_the_script(monkeypatch, capfd):
    def load(job):
        raise OSError("no such model\nat all")

    with pytest.raises(OSError, match="no such model"):
        served(monkeypatch, capfd, load, JOB, JOB)
    assert json.loads(capfd.readouterr().out) == {"error": "OSError: no such model"}


class Tree(SimpleNamespace):
    """Settings that are made where they are first named."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Tree()
        setattr(self, name, made)
        return made


def test_llama_cpp_has_a_server_per_mode_and_size_in_f32(monkeypatch):
    made = []

    class Server:
        def __init__(self, params):
            self.params, self.asked = params, []
            made.append(self)

        def handle_completions(self, body):
            self.asked.append(body)
            answer = {"usage": {"completion_tokens": body["n_predict"]}, "choices": [{"text": body["prompt"] + "!"}]}
            return json.dumps(answer) if len(self.asked) % 2 else answer

    llama = ModuleType("xllamacpp")
    llama.CommonParams, llama.Server = Tree, Server
    llama.ggml_type = SimpleNamespace(GGML_TYPE_F32="F32")
    kinds = {"COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE": "draft", "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE": "n-gram"}
    llama.common_speculative_type = SimpleNamespace(**kinds)
    monkeypatch.setitem(sys.modules, "xllamacpp", llama)
    from sgl_spec.bench.peers import run_llama_cpp

    monkeypatch.setattr(run_llama_cpp, "version", lambda name: "1.2")
    loaded = run_llama_cpp.load(JOB)
    assert loaded.engine == "llama.cpp F32 (xllamacpp 1.2)"
    assert loaded.modes == {"plain": [1, 3], "draft model": [1, 3], "n-gram": [1, 3]}
    assert [one.params.n_parallel for one in made] == [1, 3] * 3
    assert all(one.params.model.path == "t.gguf" for one in made)
    assert all(one.params.cache_type_k == one.params.cache_type_v == "F32" for one in made)
    assert all(one.params.cpuparams.n_threads == one.params.cpuparams_batch.n_threads == 2 for one in made)
    assert [vars(one.params.speculative).get("types") for one in made] == [None, None, ["draft"], ["draft"]] + [
        ["n-gram"]
    ] * 2
    assert made[2].params.speculative.draft.mparams.path == "d.gguf"
    assert all(len(one.asked) == 1 for one in made)  # warm
    assert loaded.decode("n-gram", ["a", "b", "c"], 7) == (21, ["a!", "b!", "c!"])
    assert [len(one.asked) for one in made] == [1, 1, 1, 1, 1, 4]
    assert made[5].asked[-1] | {"prompt": ""} == {
        "n_predict": 7, "temperature": 0.0, "top_k": 1, "ignore_eos": True, "cache_prompt": False, "prompt": "",
    }  # fmt: skip


def test_vllm_leaves_our_list_out_and_tells_which_mode_failed(monkeypatch, tmp_path):
    (tmp_path / "model.safetensors").touch()
    (tmp_path / IDS_FILE).touch()
    started = []

    class LLM:
        def __init__(self, **given):
            way = given["speculative_config"]
            if way is not None and way["method"] == "ngram":
                raise RuntimeError("no CPU kernel\nand more")
            if way is not None:
                assert [file.name for file in Path(way["model"]).iterdir()] == ["model.safetensors"]
            started.append(given)

        def generate(self, texts, params, use_tqdm):
            return [
                SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * params["max_tokens"], text=text + "!")])
                for text in texts
            ]

    vllm = ModuleType("vllm")
    vllm.LLM, vllm.SamplingParams = LLM, lambda **given: given
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    from sgl_spec.bench.peers import run_vllm

    monkeypatch.setattr(run_vllm, "version", lambda name: "3.4")
    loaded = run_vllm.load({**JOB, "draft": str(tmp_path)})
    assert loaded.engine == "vLLM 3.4"
    assert loaded.modes == {"plain": [1, 3], "draft model, K=3": [1, 3]}
    assert loaded.failed == {"n-gram, K=4": "RuntimeError: no CPU kernel"}
    assert [(one["model"], one["dtype"], one["max_num_seqs"]) for one in started] == [("T", "float32", 3)] * 2
    assert started[1]["speculative_config"]["num_speculative_tokens"] == 3
    assert loaded.decode("plain", ["a", "b"], 5) == (10, ["a!", "b!"])


def test_an_environment_is_made_with_its_packages(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    peer = Peer("p", "run.py", packages=("a==1",), pip_options=("--no-deps",), removed=("b",), preloaded=("lib/x.so",))
    commands: list[list[str]] = []
    monkeypatch.setattr(environments.venv, "create", lambda folder, **_: Path(folder).mkdir(parents=True))

    def run(command, **_):
        commands.append(command)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(environments.subprocess, "run", run)
    assert peer.missing() == "p is skipped: it is not installed (sgl-spec bench peers --only p --install)."
    peer.install()
    peer.install()  # it is there
    assert peer.missing() is None
    assert [command[:4] for command in commands] == [
        [str(peer.folder / "bin" / "python"), "-m", "pip", word] for word in ("install", "uninstall")
    ]
    assert commands[0][-2:] == ["--no-deps", "a==1"]
    assert commands[1][-1] == "b"
    started = []
    monkeypatch.setattr(environments, "PeerProcess", lambda *given: started.append(given))
    peer.start(JOB)
    assert started == [("p", peer.python, "run.py", JOB, {"LD_PRELOAD": str(peer.folder / "lib/x.so")})]
    PEERS["transformers"].start(JOB)
    assert started[1][1:] == (Path(sys.executable), "run_transformers.py", JOB, {})


@pytest.mark.parametrize(("said", "last"), [("first\nno such version\n", "no such version"), ("", "no message")])
def test_pips_last_line_is_the_reason(monkeypatch, tmp_path, said, last):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments.venv, "create", lambda folder, **_: Path(folder).mkdir(parents=True))
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr=said))
    peer = Peer("p", "run.py", packages=("a==1",))
    with pytest.raises(EngineError, match=f"p could not be installed: {last}$"):
        peer.install()
    assert peer.missing() is not None
