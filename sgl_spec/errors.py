"""The exceptions that sgl-spec raises on purpose.

    SpecError
    ├── ConfigError        a knob, a path or a request option is wrong: exit status 2
    │   └── VocabularyError    draft and target do not share their token ids
    ├── UpstreamError      SGLang is of another version, or its internals differ from what we pin
    └── EngineError        the engine did not start, or it died

Each message is one sentence that names the knob, the value and the remedy.
"""


class SpecError(Exception):
    """Base of all errors that sgl-spec raises on purpose."""


class ConfigError(SpecError, ValueError):
    """A knob, a path or a request option is wrong; nothing was started."""


class VocabularyError(ConfigError):
    """The draft's token ids are not the target's."""


class UpstreamError(SpecError):
    """SGLang's version or internals are not those that sgl-spec was built for."""


class EngineError(SpecError):
    """The engine did not start in time, or it died."""
