"""Programs: each one an `@sgl.function` with small helpers, useful as it is, and an example of options."""
