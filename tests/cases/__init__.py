"""The catalogue of public bug reports, and which tests try them; `docs/cases.md` is made of it."""
