"""From the target's logits to the tokens that a round emits: `sgl_spec.verify` applied to an SGLang batch."""

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

from sgl_spec.cpu.argmax import argmax
from sgl_spec.sglang_plugin.chains import Sampling, filters
from sgl_spec.sglang_plugin.guesses import Guessed
from sgl_spec.sglang_plugin.requests import EVERY_TOKEN, Track
from sgl_spec.verify.accept import DraftLaw, accept_chain, right_guesses
from sgl_spec.verify.processors import Rows, adjust_logits, keep, target_probs
from sgl_spec.verify.seeded import seeded_tokens

GREEDY = Sampling(temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)


@dataclass(slots=True)
class Verdict:
    """Of each request: `accepted` counts guesses only; `tokens` are those and the bonus token."""

    accepted: list[int]
    tokens: list[list[int]]


def only_best(batch: Any, tracks: list[Track]) -> bool:
    """Whether the rows' likeliest tokens are all that this round asks of the target: greedy, its logits unchanged."""
    info = batch.sampling_info
    return (
        not (batch.return_logprob or batch.has_grammar or info.has_custom_logit_processor)
        and info.logit_bias is None
        and all(t.sampling is None and (t.penalties is None or not t.penalties.active) for t in tracks)
    )


def agree(guessed: list[Guessed], best: list[int]) -> Verdict:
    """Decide for greedy requests; `best` [rows] are the target's tokens after each request's 0, 1, ... guesses."""
    verdict, start = Verdict([], []), 0
    for g in guessed:
        _settle(verdict, g.tokens, best[start : start + len(g.tokens) + 1])
        start += len(g.tokens) + 1
    return verdict


def judge(
    batch: Any,
    tracks: list[Track],
    guessed: list[Guessed],
    logits: torch.Tensor,
    hot_ids: torch.Tensor | None,
    generator: torch.Generator,
) -> Verdict:
    """Decide for every request which guesses survive. `logits` [rows, V] is adjusted in place."""
    lens = [len(g.tokens) for g in guessed]
    rows = Rows(starts=_starts(lens), lens=lens, drafts=[g.tokens for g in guessed])
    info = batch.sampling_info
    adjust_logits(
        logits,
        rows,
        penalties=[t.penalties for t in tracks],
        grammar=_grammar(batch, rows) if batch.has_grammar else None,
        bias=info.logit_bias,
    )
    if info.has_custom_logit_processor:
        _apply_processors(logits, rows, info)
    if all(t.sampling is None for t in tracks):
        return agree(guessed, argmax(logits))
    verdict = Verdict([], [])
    width = max(lens)
    drafts = torch.tensor([g.tokens + [0] * (width - len(g.tokens)) for g in guessed], dtype=torch.int64)
    samplings = [t.sampling or GREEDY for t in tracks]
    p = target_probs(logits, _row_filters(samplings, rows))
    accepted, emitted = accept_chain(
        p,
        drafts.reshape(len(lens), width),
        torch.tensor(lens),
        draft_law(guessed, width, hot_ids),
        starts=torch.tensor(rows.starts),
        generator=generator,
    )
    own = _seeded_tokens(batch, samplings, p, rows)
    for i, (g, count, tokens) in enumerate(zip(guessed, accepted.tolist(), emitted.tolist(), strict=True)):
        if i in own:
            _settle(verdict, g.tokens, own[i])
        else:
            verdict.accepted.append(count)
            verdict.tokens.append(tokens[: count + 1])
    return verdict


def _settle(verdict: Verdict, guesses: list[int], own: list[int]) -> None:
    """Add a request whose tokens are certain: `own` are the target's after 0, 1, ... of its guesses."""
    right = right_guesses(guesses, own)
    verdict.accepted.append(right)
    verdict.tokens.append(own[: right + 1])


def _starts(lens: list[int]) -> list[int]:
    starts, total = [], 0
    for length in lens:
        starts.append(total)
        total += length + 1
    return starts


def draft_law(guessed: list[Guessed], width: int, hot_ids: torch.Tensor | None) -> DraftLaw | None:
    """Stack the draft's laws; positions without one are point masses."""
    known = next((law for g in guessed for law in g.laws if law is not None), None)
    if known is None:
        return None
    probs = known.new_zeros(len(guessed), width, known.shape[0])
    point = torch.ones(len(guessed), width, dtype=torch.bool)
    for i, one in enumerate(guessed):
        for j, law in enumerate(one.laws):
            if law is not None:
                probs[i, j], point[i, j] = law, False
    return DraftLaw(probs=probs, ids=hot_ids, point=point)


def _row_filters(samplings: list[Sampling], rows: Rows) -> Any:
    made = filters([samplings[i] for i in rows.owner()], "cpu")
    made.any_greedy = any(s.top_k <= 1 for s in samplings)
    made.any_filter = any(s.top_k > 1 and (s.top_k < EVERY_TOKEN or s.top_p < 1.0 or s.min_p > 0.0) for s in samplings)
    return made


def _seeded_tokens(batch: Any, samplings: list[Sampling], p: torch.Tensor, rows: Rows) -> dict[int, list[int]]:
    """Return the target's tokens at each row of the requests with a seed: a function of p, seed and position."""
    seeded = [i for i, s in enumerate(samplings) if s.seed is not None]
    if not seeded:
        return {}
    ends = batch.seq_lens_cpu.tolist()
    cells = [(i, j) for i in seeded for j in range(rows.lens[i] + 1)]
    tokens = seeded_tokens(
        p[[rows.starts[i] + j for i, j in cells]],
        torch.tensor([samplings[i].seed for i, _ in cells]),
        torch.tensor([ends[i] + j + 1 for i, j in cells]),
    )
    own: dict[int, list[int]] = {i: [] for i in seeded}
    for (i, _), token in zip(cells, tokens.tolist(), strict=True):
        own[i].append(token)
    return own


def seed_first_tokens(batch: Any, result: Any) -> None:
    """Replace the first token of requests with a seed: SGLang draws it without one.

    After sampling, the prefill's logits hold the probabilities before top-k, top-p and min-p.
    """
    params = [req.sampling_params for req in batch.reqs]
    rows = [i for i, p in enumerate(params) if p.sampling_seed is not None and p.top_k != 1]
    if not rows or batch.sampling_info.sampling_seed is not None:
        return
    probs = result.logits_output.next_token_logits[rows]
    samplings = [Sampling(1.0, params[i].top_k, params[i].top_p, params[i].min_p) for i in rows]
    kept = filters(samplings, probs.device)
    p = keep(probs, kept.top_k, kept.top_p, kept.min_p) if kept.any_filter else probs
    seeds = torch.tensor([params[i].sampling_seed for i in rows])
    tokens = seeded_tokens(p, seeds, batch.seq_lens_cpu[rows].long())
    result.next_token_ids[rows] = tokens.to(result.next_token_ids.dtype)
    logprobs = result.logits_output.next_token_logprobs
    if logprobs is not None:
        logprobs[rows] = probs.gather(1, tokens[:, None])[:, 0].log().to(logprobs.dtype)


def _grammar(batch: Any, rows: Rows) -> Any:
    """Return a function that masks what each request's grammar forbids, row by row along its guesses."""
    width = max(rows.lens) + 1
    children = torch.full((len(rows.lens), width), -1, dtype=torch.int64)
    tokens = torch.zeros(len(rows.lens), width, dtype=torch.int64)
    for i, drafts in enumerate(rows.drafts):
        children[i, : len(drafts)] = torch.arange(1, len(drafts) + 1)
        tokens[i, 1 : len(drafts) + 1] = torch.tensor(list(drafts), dtype=torch.int64)
    tree = GrammarTree.from_host(children, torch.full_like(children, -1), tokens)
    mask = build_grammar_vocab_mask(
        reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info, device=batch.device, barrier=None
    )
    if mask is None:
        return None
    keep = torch.tensor([i * width + j for i, n in enumerate(rows.lens) for j in range(n + 1)])
    return type(mask)(mask.grammar, mask.vocab_mask[keep]).apply


def _apply_processors(logits: torch.Tensor, rows: Rows, info: Any) -> None:
    """Custom logit processors see one row per request: theirs are decoded plainly (K = 0)."""
    first = torch.tensor(rows.starts)
    single = logits[first]
    apply_custom_logit_processor(single, info)
    logits[first] = single
