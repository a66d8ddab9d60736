"""Text for a target, made by the target: held-out answers, training answers, labels for a user's own text."""

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sgl_spec.errors import ConfigError
from sgl_spec.models import cache_root
from sgl_spec.train.generate import Request, common_prefix, generate
from sgl_spec.train.prompts import TASKS, held_out_prompts, summary_request, training_prompts
from sgl_spec.train.rows import RowModel
from sgl_spec.train.shards import Sequence, read_shards, stored_keys, write_shard

Count = Callable[[int, int], None]
SLOTS = 64
#: Greedy answers are what a draft is judged on; sampled ones show it text around them.
TEMPERATURES = (0.0, 0.0, 0.7, 0.0, 0.0, 1.0)
HELD_OUT_TOKENS = 192
_SHARD = 32  # sequences
_MIN_DOCUMENT = 60  # tokens
_CAPACITY = 640  # tokens of a slot; longer requests are left out


def target_folder(target: Path) -> Path:
    """Where text for `target` is kept between runs: a cache folder named by the model's own bytes."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        path = target / name
        if not path.is_file():
            raise ConfigError(
                f"target {target} has no {name}; give a Hugging Face folder with a fast tokenizer."
            )
        digest.update(path.read_bytes())
    for path in sorted(target.glob("*.safetensors")):
        with path.open("rb") as handle:
            digest.update(handle.read(1 << 20))
            handle.seek(max(0, path.stat().st_size - (1 << 20)))
            digest.update(handle.read())
    return cache_root() / "train" / digest.hexdigest()[:16]


class Speaker:
    """A target's tokenizer: prompts as the target's chat template writes them, and its end tokens."""

    def __init__(self, target: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(target))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"target {target} has no tokenizer that Transformers reads ({reason})."
            ) from error
        stops: Any = json.loads((target / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
        ids = [stops] if isinstance(stops, int) else list(stops or [])
        self.stop_ids = frozenset([*ids, self.tokenizer.eos_token_id]) - {None}

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of one user turn and the start of the answer."""
        if not self.tokenizer.chat_template:
            return tuple(self.tokenizer(text)["input_ids"])
        turn = [{"role": "user", "content": text}]
        ids = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        return tuple(ids)

    def document(self, answer: Sequence) -> str | None:
        """The answer's text up to its last full sentence, None if it is too short to summarise."""
        ids = [int(i) for i in answer.tokens[answer.start :] if int(i) not in self.stop_ids]
        if len(ids) < _MIN_DOCUMENT:
            return None
        text = str(self.tokenizer.decode(ids)).strip()
        end = text.rfind(".") + 1
        return text[:end] if end > len(text) // 2 else text


def held_out_answers(target: Path, report: Count | None = None) -> list[Sequence]:
    """The target's greedy answers to the held-out prompts of all tasks; computed once, then read.

    `report` is called with the number of answers that exist and the number in all.
    """
    folder, speaker = target_folder(target) / "held", Speaker(target)
    requests = [
        Request(task, speaker.prompt_ids(prompt), 0.0, HELD_OUT_TOKENS)
        for task in TASKS
        for prompt in held_out_prompts(task)
    ]
    done = stored_keys(folder)
    missing = [request for request in requests if request.key not in done]
    if missing:
        batch = _Batch(iter(missing), missing, len(missing))
        _answer(target, speaker, batch, folder, report)
    wanted = {request.key for request in requests}
    return [sequence for sequence in read_shards(folder) if sequence.key in wanted]


def training_answers(
    target: Path, tokens: int, answer_tokens: int = 200, report: Count | None = None
) -> list[Sequence]:
    """At least `tokens` tokens of the target's answers to training prompts (fewer if the prompts run out).

    Stored answers come first; new ones are added in shards, so an interrupted run goes on where it stopped.
    A summarization prompt asks for a summary of a document that the target wrote itself.
    """
    folder, speaker = target_folder(target) / "main", Speaker(target)
    stored = list(read_shards(folder))
    have = sum(len(s.tokens) - s.start for s in stored)
    if have >= tokens:
        return stored
    plan = _Plan(speaker, stored, answer_tokens)
    sample = list(itertools.chain.from_iterable(itertools.islice(q, 8) for q in plan.queues.values()))
    batch = _Batch(plan.requests(), sample, tokens, have, plan.learn)
    _answer(target, speaker, batch, folder, report)
    return list(read_shards(folder))


class _Plan:
    """The order of training requests: tasks in turn; a finished document becomes a request to summarise."""

    _TURNS = (
        "chat",
        "document",
        "code",
        "chat",
        "summarization",
        "code",
        "document",
        "chat",
        "code",
        "summarization",
    )

    def __init__(self, speaker: Speaker, stored: list[Sequence], answer_tokens: int) -> None:
        self.speaker, self.answer_tokens = speaker, answer_tokens
        self.done = {s.key for s in stored}
        self.queues: dict[str, deque[Request]] = {turn: deque() for turn in self._TURNS}
        for task in TASKS:
            for i, prompt in enumerate(training_prompts(task)):
                writes_document = task == "summarization"
                queue = "document" if writes_document else task
                heat = 0.8 if writes_document else TEMPERATURES[i % len(TEMPERATURES)]
                kind = "chat" if writes_document else task
                self.queues[queue].append(Request(kind, speaker.prompt_ids(prompt), heat, answer_tokens))
        self.document_keys = {request.key for request in self.queues["document"]}
        self.documents = 0
        for sequence in stored:
            self.learn(sequence)

    def learn(self, sequence: Sequence) -> None:
        """Turn a finished document into a request to summarise it."""
        if sequence.key not in self.document_keys or (text := self.speaker.document(sequence)) is None:
            return
        self.documents += 1
        heat = TEMPERATURES[self.documents % len(TEMPERATURES)]
        ids = self.speaker.prompt_ids(summary_request(text))
        self.queues["summarization"].append(Request("summarization", ids, heat, self.answer_tokens))

    def requests(self) -> Iterator[Request]:
        """What is still to be answered, in turn."""
        for turn in itertools.cycle(self._TURNS):
            if not any(self.queues.values()):
                return
            queue = self.queues[turn]
            while queue:
                request = queue.popleft()
                if request.key not in self.done:
                    yield request
                    break


@dataclass(frozen=True)
class _Batch:
    """Requests and when to stop: at `goal` answers, or with `learn` at `goal` tokens, `have` counted already.

    `sample` stands for the requests that are not known yet: their lengths and their common prefix.
    """

    requests: Iterator[Request]
    sample: list[Request]
    goal: int
    have: int = 0
    learn: Callable[[Sequence], None] | None = None


def _answer(target: Path, speaker: Speaker, batch: _Batch, folder: Path, report: Count | None) -> None:
    """Generate answers into shards of `folder` until the requests end or the goal is reached."""
    longest = max(len(r.prompt_ids) + r.max_new_tokens for r in batch.sample)
    model = RowModel(target, SLOTS + 1, max(longest, _CAPACITY) if batch.learn else longest)
    fitting = (r for r in batch.requests if len(r.prompt_ids) + r.max_new_tokens <= model.capacity)
    finished: list[Sequence] = []
    done = batch.have
    answers = generate(model, fitting, SLOTS, speaker.stop_ids, shared_prefix=common_prefix(batch.sample))
    for sequence in answers:
        finished.append(sequence)
        done += len(sequence.tokens) - sequence.start if batch.learn else 1
        if batch.learn:
            batch.learn(sequence)
        if report is not None:
            report(min(done, batch.goal), batch.goal)
        if len(finished) == _SHARD:
            write_shard(folder, finished)
            finished = []
        if done >= batch.goal:
            break
    if finished:
        write_shard(folder, finished)


def labelled_text(target: Path, files: list[Path], chunk: int = 512, top_k: int = 32) -> list[Sequence]:
    """A user's own text, labelled by the target's forward pass: no generation, so far more tokens per second.

    A `.jsonl` file gives one text per line (key "text", or the joined contents of "messages"); any other file
    is one text. Texts are cut into chunks of `chunk` tokens.
    """
    speaker = Speaker(target)
    model = RowModel(target, 1, chunk)
    labelled: list[Sequence] = []
    for file in files:
        for text in _texts(file):
            ids = speaker.tokenizer(text, add_special_tokens=False)["input_ids"]
            for low in range(0, len(ids), chunk):
                piece = np.array(ids[low : low + chunk], np.int32)
                if len(piece) < 2:
                    continue
                places = np.arange(len(piece) - 1, dtype=np.int32)
                hidden = model.forward(piece[:-1].copy(), np.zeros_like(places), places)
                top_ids, top_logp = model.top(hidden, top_k)
                key = hashlib.sha256(piece.tobytes()).hexdigest()[:16]
                labelled.append(Sequence(key, "text", 0.0, 1, piece, top_ids, top_logp))
    return labelled


def _texts(file: Path) -> Iterator[str]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"text file {file} cannot be read ({error}); give UTF-8 text or JSON lines."
        ) from error
    if file.suffix != ".jsonl":
        yield content
        return
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text = row["text"] if "text" in row else "\n".join(m["content"] for m in row["messages"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'text file {file} has no "text" or "messages" in line {number}; correct the line.'
            ) from error
        yield str(text)
