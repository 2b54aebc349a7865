"""Model and hardware specifications in one place."""

from serving_gym.calibration.hardware import GPUS, GpuSpec, get_gpu
from serving_gym.calibration.models import MODELS, ModelSpec, get_model

__all__ = ["GPUS", "MODELS", "GpuSpec", "ModelSpec", "get_gpu", "get_model"]
