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
from typing import Any

import pytest

from sgl_spec.errors import UpstreamError
from sgl_spec.sglang_plugin import (
    cpu_compile,
    cpu_imports,
    cpu_models,
    cpu_start,
    cpu_transformers,
    import_hooks,
    shared_tokenizer,
)


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
    auto = SimpleNamespace(from_pretrained=lambda path, **options: [path])
    module = SimpleNamespace(get_tokenizer=lambda path, **options: [path, options], AutoTokenizer=auto)
    shared_tokenizer.install(module)
    first = module.get_tokenizer("a", revision=None, tokenizer_mode="auto")
    assert module.get_tokenizer("a", tokenizer_mode="auto", revision=None) is first
    assert module.get_tokenizer("a", tokenizer_mode="slow", revision=None) is not first
    with pytest.raises(UpstreamError, match="get_tokenizer"):
        shared_tokenizer.install(SimpleNamespace())
    with pytest.raises(UpstreamError, match="AutoTokenizer"):
        shared_tokenizer.install(SimpleNamespace(get_tokenizer=len))


def test_a_tokenizer_asked_for_again_is_built_once() -> None:
    built: list[object] = []

    class Auto:
        other = 1

        @staticmethod
        def from_pretrained(path: str, **options: object) -> object:
            built.append(object())
            return built[-1]

    auto = shared_tokenizer.AskedAgain(Auto)
    assert auto.other == 1
    first = auto.from_pretrained("a", use_fast=True, revision=None)
    assert auto.from_pretrained("a", use_fast=False, revision=None) is first
    assert auto.from_pretrained("a", use_fast=False, revision=None) is not first
    auto.from_pretrained("a", use_fast=True, revision=None)
    assert auto.from_pretrained("b", use_fast=False, revision=None) is built[-1]
    assert len(built) == 4


def compiled_later(package: str, source: str) -> tuple[list[object], dict[str, object]]:
    """Run `source` as a module of `package` with a `decorate` that notes what it decorates; its names."""
    seen: list[object] = []

    def note(function: object = None, **options: object) -> object:
        if function is None:
            return lambda later: note(later, **options)
        seen.append((function, options))
        return function

    names: dict[str, object] = {"__name__": f"{package}.some.module", "decorate": cpu_compile.deferring(note)}
    exec(textwrap.dedent(source), names)
    return seen, names


def test_decorators_of_the_compiler_wait_for_the_first_call() -> None:
    source = """
    @decorate
    def one(): return 1
    class Kept:
        @decorate(dynamic=True)
        def two(self): return 2
    def inside(): return decorate(one)
    """
    seen, names = compiled_later("sglang", source)
    assert not seen
    assert names["one"]() == names["one"]() == 1
    assert names["Kept"]().two() == 2
    assert [options for _, options in seen] == [{}, {"dynamic": True}]
    names["inside"]()
    assert len(seen) == 3
    assert len(compiled_later("elsewhere", source)[0]) == 2


def test_modules_are_mended_when_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mended_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    calls: list[str] = []
    names = dict.fromkeys(cpu_transformers.PATCHED_WHEN_IMPORTED, "mended_later")
    monkeypatch.setattr(cpu_transformers, "PATCHED_WHEN_IMPORTED", {"_patch_removed_symbols": "mended_later"})
    patches = ModuleType("patches")
    patches._patch_removed_symbols = lambda: calls.append("mended")
    cpu_transformers.defer_patches(patches)
    patches._patch_removed_symbols()
    assert not calls
    importlib.import_module("mended_later")
    assert calls == ["mended"]
    patches._patch_removed_symbols()
    assert calls == ["mended", "mended"]
    del sys.modules["mended_later"], import_hooks._around["mended_later"]
    monkeypatch.setattr(cpu_transformers, "PATCHED_WHEN_IMPORTED", names)
    with pytest.raises(UpstreamError, match="_patch_image"):
        cpu_transformers.defer_patches(patches)


def test_distributions_are_worked_out_when_asked_for() -> None:
    worked: list[int] = []

    def real() -> dict[str, list[str]]:
        worked.append(1)
        return {"yaml": ["PyYAML"], "pytest": ["pytest"]}

    found = cpu_transformers.Distributions(real)
    assert found.get("torch") == ["torch"]
    assert found.get("no_such_package", []) == []
    assert found.get("flash_attn", []) == []  # even where a folder of that name can be imported
    assert not worked
    assert found.get("yaml") == found["yaml"] == ["PyYAML"]
    assert worked == [1]
    with pytest.raises(KeyError):
        found["nothing"]


@pytest.mark.parametrize("installed", [True, False])
def test_scipy_looks_missing_to_the_losses_until_they_are_used(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    utils: Any = ModuleType("transformers.utils")
    utils.is_scipy_available = real = lambda: installed
    loss: Any = ModuleType("transformers.loss.loss_of_boxes")
    for module in (utils, loss):
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def execute() -> None:
        loss.is_scipy_available = utils.is_scipy_available
        assert not loss.is_scipy_available()

    cpu_transformers.defer_scipy(loss, execute)
    assert utils.is_scipy_available is real
    assert loss.is_scipy_available() is installed
    assert hasattr(loss, "linear_sum_assignment") is installed
    with pytest.raises(ZeroDivisionError):
        cpu_transformers.defer_scipy(loss, lambda: 1 / 0)
    assert utils.is_scipy_available is real


def test_a_folder_is_scanned_once(tmp_path: Path) -> None:
    scanned: list[str] = []
    scan = cpu_transformers.once_per_folder(lambda folder: scanned.append(folder) or {"folder": folder})
    (tmp_path / "__init__.py").touch()
    assert scan(tmp_path) is scan(str(tmp_path / "__init__.py"))
    assert scanned == [str(tmp_path)]


def test_the_first_sleeps_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl_spec.sglang_plugin.growing_sleeps import GrowingSleeps

    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = GrowingSleeps()
    for _ in range(9):
        clock.sleep(1)
    assert slept == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1, 1]
    assert clock.monotonic is time.monotonic
