"""How long a forward pass takes: a roofline over the bytes that it reads and the operations that it does.

An estimate to choose what to measure, never a replacement for measuring.
"""

from pydantic import BaseModel, ConfigDict

from sgl_spec.advise.plan import Model
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest


class Hardware(BaseModel):
    """One device (or all that share a model): what it can do at best, and what decoding gets of it."""

    model_config = ConfigDict(frozen=True)

    name: str
    bandwidth_gb_s: float
    tflops: float
    layer_us: float = 8.0
    efficiency: float = 0.7
    source: str = "data sheet, dense bf16"

    def shared_by(self, tp_size: int) -> "Hardware":
        """`tp_size` such devices that share each layer (communication is not counted)."""
        update = {"bandwidth_gb_s": self.bandwidth_gb_s * tp_size, "tflops": self.tflops * tp_size}
        return self.model_copy(update=update)

    def step_s(self, model: Model, tokens: int) -> float:
        """Seconds of one pass of `model` over `tokens` new tokens (short context: KV reads are not counted).

        The largest of: reading the weights once, computing 2 operations per weight and token, and
        `layer_us` per layer, which small drafts on a fast device cannot go below.
        """
        active = model.shape.active_parameters
        read = model.weight_bytes * min(1.0, active / model.shape.parameters) / (self.bandwidth_gb_s * 1e9)
        compute = 2 * active * tokens / (self.tflops * 1e12)
        return max(max(read, compute) / self.efficiency, model.shape.layers * self.layer_us * 1e-6)


HARDWARE = {
    hardware.name: hardware
    for hardware in (
        Hardware(name="b200", bandwidth_gb_s=8000, tflops=2250),
        Hardware(name="h200", bandwidth_gb_s=4800, tflops=989),
        Hardware(name="h100", bandwidth_gb_s=3350, tflops=989),
        Hardware(name="mi300x", bandwidth_gb_s=5300, tflops=1307),
        Hardware(name="a100", bandwidth_gb_s=2039, tflops=312),
        Hardware(name="l40s", bandwidth_gb_s=864, tflops=362),
        Hardware(name="rtx4090", bandwidth_gb_s=1008, tflops=165),
        Hardware(
            name="cpu-core",
            bandwidth_gb_s=29,
            tflops=0.075,
            layer_us=30,
            efficiency=1.0,
            source="measured: one AVX2 core, this project's kernels, fp32",
        ),
    )
}


def hardware_called(name: str) -> Hardware:
    """The hardware called `name`; raises ConfigError with the nearest name."""
    if name not in HARDWARE:
        raise ConfigError(f"hardware={name!r} is not in the table{nearest(name, HARDWARE)}.")
    return HARDWARE[name]
