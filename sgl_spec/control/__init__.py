"""How many guesses next. `make_controller` is the only way in; `base` holds the contract."""

from __future__ import annotations

from typing import get_args

from sgl_spec.config import ControllerName, SpecConfig
from sgl_spec.control.bandit import BanditController
from sgl_spec.control.base import (
    MODEL,
    Controller,
    Offer,
    RequestRound,
    RequestView,
    RoundRecord,
)
from sgl_spec.control.ema import EmaController
from sgl_spec.control.fixed import FixedController
from sgl_spec.control.mixed import MixedController
from sgl_spec.control.state_file import load_state, save_state
from sgl_spec.control.threshold import ThresholdController
from sgl_spec.control.throughput import ThroughputController
from sgl_spec.errors import ConfigError

__all__ = [
    "MODEL",
    "Controller",
    "MixedController",
    "Offer",
    "RequestRound",
    "RequestView",
    "RoundRecord",
    "load_state",
    "make_controller",
    "save_state",
]


def make_controller(config: SpecConfig) -> MixedController:
    """The controller that `config` asks for; requests may name another one in their options."""

    def make(name: str) -> Controller:
        initial, k_max = config.num_speculative_tokens, config.k_max
        if name == "throughput":
            return ThroughputController(k_max, config.draft_confidence, config.probe_share)
        stop = config.draft_confidence or 0.0
        if name == "threshold":
            return ThresholdController(initial, k_max, stop)
        if name == "ema":
            return EmaController(initial, k_max, stop)
        if name == "bandit":
            return BanditController(k_max, stop)
        if name == "fixed":
            return FixedController(initial, k_max, stop)
        known = ", ".join(get_args(ControllerName))
        raise ConfigError(f"controller={name!r} is unknown: use one of {known}.")

    return MixedController(config.controller, make)
