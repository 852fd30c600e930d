"""GPU specifications for compilation, occupancy and the roofline model."""

from compiler.targets.gpus import TARGETS
from compiler.targets.target import DTYPES, Target, UnknownTargetError, is_virtual, known_target, target

__all__ = ["DTYPES", "TARGETS", "Target", "UnknownTargetError", "is_virtual", "known_target", "target"]
