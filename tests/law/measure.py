"""The exact law of a chain sampler, measured from outside.

`accept_chain` turns uniform numbers into tokens. Each decision is monotone in one of them, so the set of
numbers that leads to an outcome is a box, and its sides are found by bisection to the last bit of a float64:
no sampling, no trust in the sampler's own formulas.
"""

import itertools

import numpy as np
import torch

from sgl_spec.verify.accept import Coins, DraftLaw, accept_chain


def paths_of(vocabulary, k):
    return list(itertools.product(range(vocabulary), repeat=k))


def emitted_law(p_rows, q_of, k, vocabulary, *, accept=accept_chain, lens=None):
    """{emitted tokens: probability} of one round.

    p_rows: path -> [k+1, V] float64; q_of: path -> (weight of drafting that path, DraftLaw for one request).
    """
    paths = [path for path in paths_of(vocabulary, k) if q_of(path)[0] > 0.0]
    weights = np.array([q_of(path)[0] for path in paths])
    p = torch.stack([p_rows(path) for path in paths])
    guesses = torch.tensor(paths, dtype=torch.int64).reshape(len(paths), k)
    q = _stack([q_of(path)[1] for path in paths])
    sizes = torch.full((len(paths),), k if lens is None else lens)

    def run(at, coins, final):
        laws = DraftLaw(None if q.probs is None else q.probs[at], q.ids, None if q.point is None else q.point[at])
        return accept(p[at], guesses[at], sizes[at], laws, coins=Coins(coins, final))

    everything = torch.arange(len(paths))
    length = int(sizes[0])
    chance = (
        torch.stack([_threshold(run, everything, j, k, length) for j in range(length)] or [], dim=1)
        if (length)
        else torch.zeros(len(paths), 0, dtype=torch.float64)
    )
    law = {}
    for kept in range(length + 1):
        reach = torch.tensor(weights) * chance[:, :kept].prod(dim=1)
        if kept < length:
            reach = reach * (1.0 - chance[:, kept])
        live = torch.nonzero(reach > 0.0)[:, 0]
        if not len(live):
            continue
        cells = _final_cells(run, live, kept, k, vocabulary)
        for row, index in enumerate(live.tolist()):
            for token in range(vocabulary):
                if cells[row, token] > 0.0:
                    emitted = (*paths[index][:kept], token)
                    law[emitted] = law.get(emitted, 0.0) + float(reach[index] * cells[row, token])
    return law


def _stack(laws):
    first = laws[0]
    if first.probs is None:
        return first
    return DraftLaw(
        torch.stack([law.probs[0] for law in laws]),
        first.ids,
        None if first.point is None else torch.stack([law.point[0] for law in laws]),
    )


def _coins(count, k, kept):
    """Coins that accept the first `kept` guesses (where p allows) and reject the next."""
    coins = torch.zeros(count, k, dtype=torch.float64)
    if kept < k:
        coins[:, kept] = 1.0 - 2.0**-53
    return coins


def _threshold(run, at, j, k, length):
    """P(guess j is accepted), given that all before it are."""
    low, high = torch.zeros(len(at), dtype=torch.float64), torch.ones(len(at), dtype=torch.float64)
    final = torch.zeros(len(at), dtype=torch.float64)

    def accepted(coin):
        coins = _coins(len(at), k, k)
        coins[:, j] = coin
        if j + 1 < length:
            coins[:, j + 1] = 1.0 - 2.0**-53
        return run(at, coins, final)[0] > j

    always = accepted(torch.full_like(low, 1.0 - 2.0**-53))
    never = ~accepted(low)
    for _ in range(60):
        middle = (low + high) / 2
        yes = accepted(middle)
        low, high = torch.where(yes, middle, low), torch.where(yes, high, middle)
    return torch.where(never, 0.0, torch.where(always, 1.0, high))


def _final_cells(run, at, kept, k, vocabulary):
    """P(final token) [len(at), V], given that exactly `kept` guesses were accepted."""
    edges = [torch.zeros(len(at), dtype=torch.float64)]
    coins = _coins(len(at), k, kept)
    for token in range(vocabulary - 1):
        low = torch.zeros(len(at), dtype=torch.float64)
        high = torch.ones(len(at), dtype=torch.float64)
        for _ in range(60):
            middle = (low + high) / 2
            accepted, tokens = run(at, coins, middle)
            assert (accepted == kept).all()
            under = tokens[:, kept] <= token
            low, high = torch.where(under, middle, low), torch.where(under, high, middle)
        last = run(at, coins, torch.full_like(low, 1.0 - 2.0**-53))[1][:, kept] <= token
        first = run(at, coins, torch.zeros_like(low))[1][:, kept] > token
        edges.append(torch.where(first, 0.0, torch.where(last, 1.0, high)))
    edges.append(torch.ones(len(at), dtype=torch.float64))
    return torch.stack(edges, dim=1).diff(dim=1).numpy()


def law_error(law, p_at):
    """Largest deviation from: given what was emitted so far, the next token follows p.

    p_at: prefix -> [V]. Summing over rounds, a whole text then follows the target exactly.
    """
    worst = abs(sum(law.values()) - 1.0)
    prefixes = {emitted[:n] for emitted in law for n in range(len(emitted))}
    for prefix in prefixes:
        n = len(prefix)
        mass = np.zeros(len(p_at(prefix)))
        for emitted, chance in law.items():
            if len(emitted) > n and emitted[:n] == prefix:
                mass[emitted[n]] += chance
        worst = max(worst, float(np.abs(mass - mass.sum() * np.asarray(p_at(prefix))).max()))
    return worst
