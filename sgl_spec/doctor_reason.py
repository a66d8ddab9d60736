"""The one most likely reason for being slow, and what to do: rules over facts, first match wins."""

from typing import Any, NamedTuple

from sgl_spec.stats import LOW_ACCEPTANCE
from sgl_spec.upstream import VERSION

FEW_ROUNDS = 200
MOSTLY = 0.9
BUSY = 1.2  # load per core above which other programs matter
KV_LEFT = 0.1


class Diagnosis(NamedTuple):
    """One sentence each."""

    reason: str
    remedy: str


def diagnose(local: dict[str, Any], server: dict[str, Any] | None) -> Diagnosis:
    """`local` are facts of this machine (`doctor.local_facts`), `server` those of a server, None without one."""
    return (
        _installation(local)
        or (_server(server) if server is not None else None)
        or _machine(local)
        or (_guessing(server) if server is not None else None)
        or _nothing(server)
    )


def _installation(local: dict[str, Any]) -> Diagnosis | None:
    if local["sglang"] != VERSION:
        return Diagnosis(
            f"SGLang is {local['sglang']}, and sgl-spec was built for {VERSION}.",
            f"Install sglang=={VERSION}, or see docs/upgrading.md.",
        )
    missing = [name for name, live in local["hooks"].items() if not live]
    if missing:
        return Diagnosis(
            f"The entry point {missing[0]} of sgl-spec is not installed, so SGLang does not load it.",
            "Run ./launch.sh once in the clone, or install the package.",
        )
    if not local["accelerator"] and local["cpu_kernels"] is not None:
        return Diagnosis(
            f"The CPU kernels are not in use: {local['cpu_kernels']}",
            "Install a C++ compiler (Debian: apt-get install g++) and start again.",
        )
    return None


def _server(server: dict[str, Any]) -> Diagnosis | None:
    if server["stats"] is None:
        return Diagnosis(
            "The server runs without sgl-spec: nothing is guessed.",
            "Start it with `sgl-spec serve --model-path TARGET --draft-model-path DRAFT`.",
        )
    stats = server["stats"]
    off = stats["not_speculated"]
    if off and sum(off.values()) > MOSTLY * max(stats["requests"], 1):
        reason = max(off, key=lambda name: off[name])
        return Diagnosis(
            f"{off[reason]} of {stats['requests']} requests were decoded plainly: {reason}.",
            "Send requests without what that sentence names.",
        )
    if server["kv_slots"] and server["kv_slots_free"] < KV_LEFT * server["kv_slots"] and server["running"]:
        return Diagnosis(
            f"Only {server['kv_slots_free']} of {server['kv_slots']} KV slots are free, so requests wait.",
            "Raise max_total_tokens (or mem_fraction_static), or send fewer requests at once.",
        )
    return None


def _machine(local: dict[str, Any]) -> Diagnosis | None:
    if local["accelerator"]:
        return None
    if local["load_per_core"] > BUSY:
        return Diagnosis(
            f"The machine is busy: load {local['load_per_core']:.1f} per core.",
            "Stop other programs, or give the server cores of its own (taskset).",
        )
    threads = local["omp_num_threads"]
    if threads is not None and threads > local["cores_allowed"]:
        return Diagnosis(
            f"OMP_NUM_THREADS={threads} is above the {local['cores_allowed']} cores that this process may use.",
            f"Set OMP_NUM_THREADS to at most {local['cores_allowed']}, or unset it.",
        )
    return None


def _guessing(server: dict[str, Any]) -> Diagnosis | None:
    stats = server["stats"]
    if stats["rounds"] < FEW_ROUNDS:
        return None
    rate, plain = stats["draft_acceptance_rate"], stats["plain_share"]
    shown = "nothing was accepted" if rate is None else f"{rate:.0%} of the guesses were right"
    if rate is not None and rate < LOW_ACCEPTANCE and plain < MOSTLY:
        return Diagnosis(
            f"Guesses are mostly wrong ({shown}), and {1 - plain:.0%} of the rounds still guess.",
            "Use controller=throughput, and a draft made for this target (`sgl-spec distill`, `sgl-spec advise`).",
        )
    if plain > MOSTLY:
        return Diagnosis(
            f"{plain:.0%} of the rounds run without guesses, because guessing did not pay here ({shown}).",
            "Measure other drafts with `sgl-spec advise TARGET --draft DRAFT --measure PROMPTS`.",
        )
    return None


def _nothing(server: dict[str, Any] | None) -> Diagnosis:
    if server is None:
        return Diagnosis("Nothing is wrong with the installation.", "Give a server's address to look into it.")
    stats = server["stats"]
    if stats["rounds"] < FEW_ROUNDS:
        return Diagnosis(
            f"Too little was decoded to judge: {stats['rounds']} rounds.",
            f"Send some of your own requests, at least {FEW_ROUNDS} tokens, and ask again.",
        )
    return Diagnosis(
        f"Nothing is wrong: {stats['tokens_per_step']:.2f} tokens per pass of the target.",
        "Compare with plain decoding: `sgl-spec bench speedup`.",
    )
