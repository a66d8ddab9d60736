"""Where guesses come from: text seen before, predictions, draft models, other vocabularies."""
