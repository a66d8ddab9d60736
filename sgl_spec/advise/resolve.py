"""From what a user types to a model: a folder, or the name of a known model."""

from pathlib import Path

from sgl_spec.advise.families import find, known_models
from sgl_spec.advise.plan import Model
from sgl_spec.advise.shape import shape_from_folder
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest


def resolve(name: str) -> tuple[Model, str]:
    """The model called `name` (a folder or a known name) and its family ('' for a folder)."""
    folder = Path(name)
    if folder.is_dir():
        return Model(shape=shape_from_folder(folder), folder=folder), ""
    known = find(name)
    if known is None:
        names = [model.shape.name for model in known_models()]
        raise ConfigError(f"{name!r} is neither a model folder nor a known model{nearest(name, names)}.")
    return Model(shape=known.shape), known.family
