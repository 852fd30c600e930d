"""GPUs as data: what a compiler, an occupancy count and a roofline need to know."""

from compiler.targets.gpus import TARGETS
from compiler.targets.target import DTYPES, Target, UnknownTargetError, is_virtual, known_target, target

__all__ = ["DTYPES", "TARGETS", "Target", "UnknownTargetError", "is_virtual", "known_target", "target"]
