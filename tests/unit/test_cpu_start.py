"""The start on a CPU: lazy models, hidden packages, and children that look like spawned ones."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from sgl_spec.errors import UpstreamError
from sgl_spec.sglang_plugin import cpu_imports, cpu_models, cpu_start, import_hooks, shared_tokenizer


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "made_up_models"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "one.py").write_text("class OneLM: pass\nEntryClass = OneLM\n")
    (folder / "many.py").write_text("class ALM: pass\nclass BLM: pass\nEntryClass = [\n    ALM,\n    BLM,\n]\n")
    (folder / "clash.py").write_text("class ALM: pass\nEntryClass = [ALM]\n")
    (folder / "alias.py").write_text("class Inner: pass\nAliasLM = Inner\nEntryClass = AliasLM\n")
    (folder / "broken.py").write_text("raise ImportError('broken')\nEntryClass = Nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cpu_models, "MODELS_PACKAGE", folder.name)
    importlib.invalidate_caches()
    yield folder
    for name in [n for n in sys.modules if n.split(".")[0] == folder.name]:
        del sys.modules[name]


def test_lazy_models_import_only_the_file_that_names_the_architecture(package: Path) -> None:
    models = cpu_models.LazyModels(package)
    assert models["OneLM"].__name__ == "OneLM"
    assert models.get("BLM").__name__ == "BLM"
    assert "OneLM" in models
    assert "made_up_models.broken" not in sys.modules


@pytest.mark.parametrize("name", ["ALM", "AliasLM", "UnknownLM", None])
def test_what_is_not_offered_exactly_once_is_left_to_the_full_scan(package: Path, name: str | None) -> None:
    models = cpu_models.LazyModels(package)
    assert name not in models
    assert models.get(name) is None
    with pytest.raises(KeyError):
        models[name]
    full = {"ALM": int} | models
    assert type(full) is dict
    assert full == {"ALM": int}


def test_a_registry_that_loads_its_models_at_once_is_refused() -> None:
    registry = ModuleType("registry")

    def execute() -> None:
        assert os.environ[cpu_models.EXTERNAL_VARIABLE] == cpu_models.EMPTY_PACKAGE
        registry.ModelRegistry = SimpleNamespace(models={"X": int}, _default_models_loaded=True)

    with pytest.raises(UpstreamError, match=r"0\.5\.23"):
        cpu_models.run_without_models(registry, execute)
    assert cpu_models.EXTERNAL_VARIABLE not in os.environ


def test_an_engine_without_its_name_mp_is_refused() -> None:
    with pytest.raises(UpstreamError, match="mp"):
        cpu_start.install(SimpleNamespace(mp=None))


def test_code_runs_around_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waited_for.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    seen = []
    import_hooks.after_import("waited_for", lambda module: seen.append(module.value))
    assert not seen
    import waited_for

    assert seen == [1]
    assert waited_for.value == 1
    with pytest.raises(RuntimeError, match="already"):
        import_hooks.after_import("waited_for", seen.append)
    del sys.modules["waited_for"], import_hooks._around["waited_for"]


def test_gpu_packages_are_hidden_from_sglang_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_imports, "importer", lambda: "sglang")
    for name in cpu_imports.GPU_PACKAGES:
        with pytest.raises(ModuleNotFoundError, match="GPU"):
            cpu_imports.HiddenFromSglang.find_spec(name)
    assert cpu_imports.HiddenFromSglang.find_spec("torch") is None
    monkeypatch.setattr(cpu_imports, "importer", lambda: "elsewhere")
    assert cpu_imports.HiddenFromSglang.find_spec("flashinfer") is None


def test_the_importer_is_the_module_with_the_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "not_there":
                seen.append(cpu_imports.importer())

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    exec("try:\n    import not_there\nexcept ImportError: pass", {"__name__": "sglang.some.module"})
    assert seen == ["sglang"]
    assert importlib.util.find_spec("not_there") is None
    assert seen == ["sglang", ""]


def test_obstacles_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_start, "_at_load", cpu_start.variables_read_at_load())
    monkeypatch.setattr("threading.active_count", lambda: 1)
    monkeypatch.setattr(cpu_start, "resident_bytes", lambda: 1)
    assert cpu_start.obstacle() is None
    monkeypatch.setenv("SGLANG_RUN_ID", "1")
    assert cpu_start.obstacle() is None
    monkeypatch.setattr(cpu_start, "resident_bytes", lambda: cpu_start.MAX_RESIDENT + 1)
    assert "2 GiB" in cpu_start.obstacle()
    monkeypatch.setattr("threading.active_count", lambda: 2)
    assert "threads" in cpu_start.obstacle()
    monkeypatch.setenv("OMP_SOMETHING", "1")
    assert "OMP_SOMETHING" in cpu_start.obstacle()


PROGRAM = """
import multiprocessing, os, signal, sys, threading, time
from types import SimpleNamespace

def leaked(fd):
    try:
        return os.fstat(fd).st_rdev != os.stat(os.devnull).st_rdev
    except OSError:
        return False

def child(writer, stay):
    writer.send({
        "parent": os.getppid(),
        "main": __name__,
        "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "leak": leaked(int(os.environ["LEAK"])),
        "late": os.environ["LATE"],
        "pid": os.getpid(),
        "imported": "imported_by_parent" in sys.modules,
        "exit": len(gone),
    })
    time.sleep(60 * stay)
    sys.exit(7)

gone = []

if __name__ == "__main__":
    from sgl_spec.sglang_plugin import cpu_start
    engine = SimpleNamespace(mp=multiprocessing)
    cpu_start._threads_at_load[0] = 1
    cpu_start.install(engine)
    signal.signal(signal.SIGTERM, lambda *_: None)
    sys.modules["imported_by_parent"] = sys
    gone.append(1)
    leak = os.open(__file__, os.O_RDONLY)
    os.environ["LEAK"], os.environ["LATE"] = str(leak), "set after import"
    if "thread" in sys.argv:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    reader, writer = engine.mp.Pipe(duplex=False)
    process = engine.mp.Process(target=child, args=(writer, "stay" in sys.argv))
    process.start()
    seen = reader.recv()
    assert seen["parent"] == os.getpid() and seen["pid"] == process.pid
    print(seen, flush=True)
    if "stay" in sys.argv:
        time.sleep(60)
    process.join()
    print(process.exitcode)
"""


def program(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def test_a_forked_child_looks_like_a_spawned_one(tmp_path: Path) -> None:
    out, _ = program(tmp_path).communicate(timeout=120)
    first, last = out.splitlines()
    seen = eval(first)
    assert seen.pop("imported")
    assert (seen["main"], seen["term"], seen["leak"], seen["exit"]) == ("__mp_main__", True, False, 0)
    assert seen["late"] == "set after import"
    assert last == "7"


def test_a_parent_with_threads_spawns(tmp_path: Path) -> None:
    process = program(tmp_path, "thread", "stay")
    assert process.stdout is not None
    seen = eval(process.stdout.readline())
    process.kill()
    process.wait()
    assert not seen["imported"]
    assert seen["main"] == "__mp_main__"


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    process = program(tmp_path, "stay")
    assert process.stdout is not None
    pid = eval(process.stdout.readline())["pid"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(100):
        status = Path(f"/proc/{pid}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} outlived its parent")


def test_the_engines_multiprocessing_is_the_real_one_but_for_processes() -> None:
    shim = cpu_start.EngineMultiprocessing()
    assert shim.Pipe == multiprocessing.Pipe
    assert shim.Process is cpu_start.EngineProcess
    assert issubclass(shim.Process, multiprocessing.process.BaseProcess)


def test_a_tokenizer_is_built_once_per_process() -> None:
    module = SimpleNamespace(get_tokenizer=lambda path, **options: [path, options])
    shared_tokenizer.install(module)
    first = module.get_tokenizer("a", revision=None, tokenizer_mode="auto")
    assert module.get_tokenizer("a", tokenizer_mode="auto", revision=None) is first
    assert module.get_tokenizer("a", tokenizer_mode="slow", revision=None) is not first
    with pytest.raises(UpstreamError, match="get_tokenizer"):
        shared_tokenizer.install(SimpleNamespace())
