"""Carries the controller's measurements over a restart of the server."""

import logging
import platform
import time
from pathlib import Path

from sgl_spec.config import SpecConfig
from sgl_spec.control import MixedController
from sgl_spec.control.state_file import load_state, save_state

logger = logging.getLogger(__name__)
EVERY_S = 30.0  # a server may end without notice


class CostFile:
    """Loads at the start, saves now and then; does nothing where no file is named."""

    def __init__(self, config: SpecConfig, controller: MixedController) -> None:
        self.path = config.cost_file
        self.controller = controller
        names = [Path(path).name for path in (config.model_path, *config.draft_model_paths)]
        self.key = " + ".join([*names, config.cpu_weights, platform.machine()])
        self.saved = time.monotonic()
        if self.path is not None:
            load_state(controller, self.path, self.key)

    def save_sometimes(self) -> None:
        """Save if the last time is long ago; a file that cannot be written is reported once and given up."""
        if self.path is None or time.monotonic() - self.saved < EVERY_S:
            return
        self.saved = time.monotonic()
        try:
            save_state(self.controller, self.path, self.key)
        except OSError as error:
            logger.warning(
                "cost_file=%s cannot be written (%s): measurements are not kept", self.path, error.strerror
            )
            self.path = None
