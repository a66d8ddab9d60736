#!/usr/bin/env bash
# sgl-spec from a fresh clone to a running server. `./launch.sh help` lists the commands.
#
# The environment (11 GB, mostly SGLang's dependencies) is built once from requirements.lock and kept
# under the user's cache folder, named by the lock file's hash: clones share it, a changed lock makes a
# new one. The package itself is not installed there. The clone that runs puts itself on PYTHONPATH,
# with its entry points beside it (sgl_spec.egg-info), so that two clones run their own code.
set -euo pipefail

REPO="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
CACHE="${XDG_CACHE_HOME:-${HOME:?HOME is not set, so there is no cache folder: set XDG_CACHE_HOME}/.cache}/sgl-spec"
LOCK="$REPO/requirements.lock"
NEEDED_GB=14 # 11 GB installed, and what pip holds in wheels while it unpacks them

say() { printf '[sgl-spec] %s\n' "$*" >&2; }
fail() { say "$*"; exit "${STATUS:-1}"; }

usage() {
  cat <<'TEXT'
usage: ./launch.sh [COMMAND] [ARGUMENTS]

  demo   (default) fetch the demo pair, answer real prompts with and without the draft, print a card
         ./launch.sh demo --json
  serve  start the server: every option of SGLang and of sgl-spec
         ./launch.sh serve --model-path TARGET --speculative-draft-model-path DRAFT --port 30000
  test   ruff, mypy, then the tests, fast to slow; stops at the first failure
         ./launch.sh test                     what CI runs
         ./launch.sh test --long              with the long forms of the cases
         ./launch.sh test --soak              the soak test only
         ./launch.sh test tests/unit -k plan  any arguments of pytest
  bench  measure: ./launch.sh bench --help
  run    a command inside the environment
         ./launch.sh run sgl-spec plan --preset article
         ./launch.sh run python -m programs.chat --help
  help   this text

Each command builds the environment first if it is missing (about 5 minutes, 11 GB).

SGL_SPEC_VENV    use this existing environment instead of building one
SGL_SPEC_PYTHON  the Python 3.11 or 3.12 that builds the environment
XDG_CACHE_HOME   where environments and models are kept (default ~/.cache)
TEXT
}

# Prints the first interpreter that is 3.11 or 3.12 and can make environments.
find_python() {
  local candidate
  for candidate in ${SGL_SPEC_PYTHON:+"$SGL_SPEC_PYTHON"} python3.11 python3.12 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
      >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
    [ "$candidate" != "${SGL_SPEC_PYTHON:-}" ] ||
      fail "SGL_SPEC_PYTHON=$SGL_SPEC_PYTHON is no Python 3.11 or 3.12 with venv and ensurepip: name another one."
  done
  fail "No Python 3.11 or 3.12 with venv was found: install one (Debian: apt-get install python3.11-venv) or set SGL_SPEC_PYTHON."
}

check_machine() {
  [ "$(uname -s)" = Linux ] || fail "SGLang's wheels are built for Linux and this is $(uname -s): use a Linux machine or container."
  command -v flock >/dev/null || fail "The command flock is missing: install it (Debian: apt-get install util-linux)."
  local free_gb
  free_gb="$(df -Pk "$CACHE" | awk 'NR == 2 { print int($4 / 1048576) }')"
  [ "$free_gb" -ge "$NEEDED_GB" ] || fail "Only $free_gb GB are free in $CACHE and the install needs $NEEDED_GB: free some, or set XDG_CACHE_HOME to a larger disk."
}

compiler_note() {
  command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
    say "No C++ compiler: going on with torch's kernels, which are slower on a CPU; for ours install one (Debian: apt-get install g++)."
}

# Installs the lock into $1. Says every half minute how far it is: pip is silent for long.
install_into() {
  local venv="$1" log="$1.log" pip_pid python
  python="$(find_python)" || exit 1
  say "installing $(grep -c '==' "$LOCK") packages with $("$python" --version) into $venv (about 5 minutes; log: $log)"
  rm -rf "$venv"
  "$python" -m venv "$venv" >"$log" 2>&1 || fail "Making the environment failed: $(tail -n 1 "$log")"
  mkdir "$venv/tmp"
  # --no-compile: most of the 11 GB is never imported, and what is gets compiled at its first import.
  TMPDIR="$venv/tmp" "$venv/bin/python" -m pip install --no-deps --no-compile --no-input --progress-bar off \
    --disable-pip-version-check -r "$LOCK" >>"$log" 2>&1 9>&- &
  pip_pid=$!
  trap 'kill "$pip_pid" 2>/dev/null; fail "Interrupted: the next start installs again."' INT TERM
  while kill -0 "$pip_pid" 2>/dev/null; do
    sleep 1 9>&-
    [ $((++tick % 30)) -ne 0 ] || say "  $SECONDS s, $(du -sm "$venv" 2>/dev/null | cut -f1) MB"
  done
  wait "$pip_pid" || fail "pip failed: $(grep -E '^ERROR' "$log" | tail -n 1 || true) (whole log: $log)"
  trap - INT TERM
  rm -rf "$venv/tmp"
  printf '#!%s/bin/python\nfrom sgl_spec.cli import main\nraise SystemExit(main())\n' "$venv" >"$venv/bin/sgl-spec"
  chmod +x "$venv/bin/sgl-spec"
}

# Sets VENV. The file .complete is written last: without it an environment is a torn one and is redone.
ensure_venv() {
  local tick=0
  if [ -n "${SGL_SPEC_VENV:-}" ]; then
    [ -x "$SGL_SPEC_VENV/bin/python" ] ||
      STATUS=2 fail "SGL_SPEC_VENV=$SGL_SPEC_VENV has no bin/python: name an environment, or unset it to have one built."
    VENV="$(cd "$SGL_SPEC_VENV" && pwd)"
    return
  fi
  [ -f "$LOCK" ] || fail "$LOCK is missing: take it from the repository."
  VENV="$CACHE/venvs/$(sha256sum "$LOCK" | cut -c1-12)"
  [ ! -f "$VENV/.complete" ] || return 0
  mkdir -p "$CACHE/venvs" 2>/dev/null || fail "$CACHE cannot be written: set XDG_CACHE_HOME to a folder of yours."
  check_machine
  exec 9>"$VENV.lock"
  flock -n 9 || { say "another start is installing this environment: waiting for it"; flock 9; }
  if [ ! -f "$VENV/.complete" ]; then
    SECONDS=0
    compiler_note
    install_into "$VENV"
    touch "$VENV/.complete"
    say "installed in $SECONDS s"
  fi
  exec 9>&-
}

# Writes the entry points that SGLang's processes read, again whenever pyproject.toml changed.
ensure_entry_points() {
  local info="$REPO/sgl_spec.egg-info"
  [ ! "$info/entry_points.txt" -nt "$REPO/pyproject.toml" ] || return 0
  "$VENV/bin/python" - "$REPO" <<'PYTHON' || fail "The entry points could not be written to $info: make the clone writable."
import os, sys, tomllib
from pathlib import Path

root = Path(sys.argv[1])
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
groups = {"console_scripts": project["scripts"], **project["entry-points"]}
info = root / "sgl_spec.egg-info"
info.mkdir(exist_ok=True)
texts = {
    "PKG-INFO": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
    "entry_points.txt": "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items()) + "\n"
        for group, entries in groups.items()
    ),
}
for name, text in texts.items():
    part = info / f".{name}.{os.getpid()}"
    part.write_text(text)
    part.replace(info / name)
PYTHON
}

prepare() {
  ensure_venv
  ensure_entry_points
  unset SGL_SPEC_VENV SGL_SPEC_PYTHON # SGLang warns of every variable that begins with SGL_
  unset PYTHONDONTWRITEBYTECODE # without byte code, every start compiles thousands of modules again
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH" PYTHONPATH="$REPO${PYTHONPATH:+:$PYTHONPATH}"
}

cli() { exec "$VENV/bin/python" -m sgl_spec.cli "$@"; }

run_command() {
  [ $# -gt 0 ] || STATUS=2 fail "run needs a command, for example: ./launch.sh run python -V"
  [ "$1" != sgl-spec ] || cli "${@:2}"
  exec "$@"
}

# The argument as an absolute path if it names tests, seen from here or from the clone.
test_path() {
  local path
  for path in "$1" "$REPO/$1"; do
    [ ! -e "${path%%::*}" ] || { (cd "$(dirname "${path%%::*}")" && echo "$PWD/$(basename "${path%%::*}")${path#"${path%%::*}"}"); return; }
  done
  return 1
}

run_tests() {
  local marks="not long and not soak" folders=() arguments=() argument folder path
  for argument in "$@"; do
    case "$argument" in
      --long) marks="not soak" ;;
      --soak) marks="soak" ;;
      -*) arguments+=("$argument") ;;
      *) if path="$(test_path "$argument")"; then folders+=("$path"); else arguments+=("$argument"); fi ;;
    esac
  done
  cd "$REPO"
  if [ ${#folders[@]} -eq 0 ]; then
    for folder in unit law property golden contract engine; do
      [ ! -d "tests/$folder" ] || folders+=("tests/$folder")
    done
  fi
  SECONDS=0
  say "ruff"
  python -m ruff check --quiet . || fail "ruff found the problems above."
  say "mypy"
  python -m mypy --no-error-summary || fail "mypy found the problems above."
  say "ruff and mypy are clean ($SECONDS s); now the tests"
  export OMP_NUM_THREADS=1
  exec python -m pytest -x -m "$marks" ${arguments[@]+"${arguments[@]}"} "${folders[@]}"
}

command="${1:-demo}"
[ $# -eq 0 ] || shift
case "$command" in
  demo | serve | bench) prepare; cli "$command" "$@" ;;
  test) prepare; run_tests "$@" ;;
  run) prepare; run_command "$@" ;;
  help | -h | --help) usage ;;
  -*) prepare; cli demo "$command" "$@" ;;
  *) usage >&2; STATUS=2 fail "There is no command '$command': use demo, serve, test, bench, run or help." ;;
esac
