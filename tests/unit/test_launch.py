"""launch.sh on small clones: own environment, own code, torn installs, sentences."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOW = """
import sgl_spec, importlib.metadata as m
print(sgl_spec.__file__)
print(len(m.entry_points(group='sglang.srt.plugins', name='sgl_spec')))
"""


def clone(folder: Path, lock: str = "") -> Path:
    """A clone that holds only what the launcher reads."""
    (folder / "sgl_spec").mkdir(parents=True)
    (folder / "sgl_spec" / "__init__.py").touch()
    shutil.copy(ROOT / "launch.sh", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "requirements.lock").write_text(lock)
    return folder


def venv_of(cache: Path, lock: str) -> Path:
    return cache / "sgl-spec" / "venvs" / hashlib.sha256(lock.encode()).hexdigest()[:12]


def environment(cache: Path, **extra: str) -> dict[str, str]:
    kept = {
        k: v for k, v in os.environ.items() if k not in ("SGL_SPEC_VENV", "PYTHONPATH", "SGL_SPEC_PYTHON")
    }
    return kept | {"XDG_CACHE_HOME": str(cache)} | extra


def launch(
    repo: Path, *arguments: str, env: dict[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [repo / "launch.sh", *arguments],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def own_venv() -> dict[str, str]:
    return {"SGL_SPEC_VENV": sys.prefix}


def test_two_clones_share_an_environment_and_run_their_own_code(
    tmp_path: Path, own_venv: dict[str, str]
) -> None:
    for name in ("a", "b"):
        repo = clone(tmp_path / name)
        nested = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {SHOW!r}]))"
        result = launch(
            repo, "run", "python", "-c", nested, env=environment(tmp_path, **own_venv), cwd=Path("/")
        )
        assert result.stdout.splitlines() == [str(repo / "sgl_spec" / "__init__.py"), "1"], result.stderr


def test_entry_points_follow_pyproject(tmp_path: Path, own_venv: dict[str, str]) -> None:
    repo, env = clone(tmp_path / "a"), environment(tmp_path, **own_venv)
    launch(repo, "run", "true", env=env)
    project = repo / "pyproject.toml"
    project.write_text(project.read_text().replace("sgl_spec.cli:main", "sgl_spec.other:main"))
    later = time.time() + 5
    os.utime(project, (later, later))
    launch(repo, "run", "true", env=env)
    assert "sgl-spec = sgl_spec.other:main" in (repo / "sgl_spec.egg-info" / "entry_points.txt").read_text()


def test_two_starts_at_once_redo_a_torn_install_once(tmp_path: Path) -> None:
    lock = "# no packages\n"
    repo, env = clone(tmp_path / "a", lock), environment(tmp_path / "cache")
    torn = venv_of(tmp_path / "cache", lock)
    (torn / "bin").mkdir(parents=True)
    (torn / "bin" / "python").touch()
    starts = [
        subprocess.Popen(
            [repo / "launch.sh", "run", "python", "-c", SHOW], env=env, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    errors = [start.communicate(timeout=120)[1] for start in starts]
    assert [start.returncode for start in starts] == [0, 0], errors
    assert sum("installed in" in text for text in errors) == 1, errors
    assert launch(repo, "run", "true", env=env).stderr == ""


def test_the_lock_names_the_environment(tmp_path: Path) -> None:
    repo = clone(tmp_path / "a", "one==1\n")
    for lock in ("one==1\n", "one==2\n"):
        venv = venv_of(tmp_path, lock)
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable)
        (venv / ".complete").touch()
        (repo / "requirements.lock").write_text(lock)
        result = launch(repo, "run", "printenv", "VIRTUAL_ENV", env=environment(tmp_path))
        assert result.stdout.strip() == str(venv), result.stderr


def test_failures_are_one_sentence(tmp_path: Path, own_venv: dict[str, str]) -> None:
    repo, env = clone(tmp_path / "a", "no-such-package-of-sgl-spec==0\n"), environment(tmp_path / "cache")
    cases = [
        (("nothing",), env, 2, "There is no command 'nothing'"),
        (("run",), environment(tmp_path, **own_venv), 2, "run needs a command"),
        (
            ("run", "true"),
            environment(tmp_path, SGL_SPEC_VENV="/nowhere"),
            2,
            "SGL_SPEC_VENV=/nowhere has no bin/python",
        ),
        (
            ("run", "true"),
            env | {"SGL_SPEC_PYTHON": "false"},
            1,
            "SGL_SPEC_PYTHON=false is no Python 3.11 or 3.12",
        ),
        (("run", "true"), env | {"PIP_NO_INDEX": "1"}, 1, "pip failed: ERROR: No matching distribution"),
    ]
    for arguments, variables, status, text in cases:
        result = launch(repo, *arguments, env=variables)
        assert (result.returncode, text in result.stderr.splitlines()[-1]) == (status, True), result.stderr


def test_help_needs_no_environment(tmp_path: Path) -> None:
    result = launch(clone(tmp_path / "a"), "help", env=environment(tmp_path))
    assert result.returncode == 0
    assert not (tmp_path / "sgl-spec").exists()
    for name in ("demo", "serve", "test", "bench", "run", "SGL_SPEC_VENV"):
        assert name in result.stdout
