"""Other engines on the same models and prompts: each in a process, and where needed an environment, of its own."""
