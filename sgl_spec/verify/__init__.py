"""Which guesses survive: `accept` (greedy, exact sampling), `seeded`, `processors` (the target's law p)."""
