"""How long a decision stands: rounds that a request keeps its K, and rounds between plans."""

from sgl_spec.control.explore import Running

DWELL = 10  # rounds that a request keeps its K
YOUNG, YOUNG_DWELL = 30.0, 3  # the same until so many first guesses of a program were judged
CALM = 20  # the same after drafting lost clearly
PLAN_EVERY = 10  # rounds between plans while nothing new comes in


def dwell(state: Running, young: bool) -> int:
    """Rounds that the request keeps its K; `young`: little is known of its program's draft."""
    return YOUNG_DWELL if state.dwell == DWELL and young else state.dwell


def pace(state: Running, young: bool) -> int:
    """Rounds until the request wants another plan, if nothing new comes in."""
    return YOUNG_DWELL if young and state.k != 0 and not state.waits else PLAN_EVERY
