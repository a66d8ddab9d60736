"""Which draft, how much memory, whether it pays: answers before anything is started."""
