"""A package of no models: with it as external package, SGLang imports its own models when they are needed."""
