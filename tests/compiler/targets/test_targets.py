"""The table of GPUs: numbers that agree with each other, and names as people write them."""

from __future__ import annotations

import pytest

from compiler.targets import DTYPES, TARGETS, Target, UnknownTargetError, is_virtual, target

FP32_LANES = {"sm_80": 64, "sm_90": 128, "sm_100": 128, "sm_89": 128, "sm_75": 64, "gfx942": 256}
"""Floating-point operations that a multiprocessor starts in one cycle: an FMA counts for two of a rate."""

every_target = pytest.mark.parametrize("gpu", TARGETS, ids=lambda gpu: gpu.name)


def test_table_has_the_expected_gpus() -> None:
    assert [gpu.name for gpu in TARGETS] == ["a100", "h100", "h200", "b200", "l4", "t4", "rtx4090", "mi300x"]


@every_target
def test_bandwidth_matches_the_memory_bus(gpu: Target) -> None:
    of_the_bus = 2 * gpu.memory_clock * gpu.memory_bus_width / 8
    assert of_the_bus == pytest.approx(gpu.memory_bandwidth, rel=0.03)


@every_target
def test_float32_rate_matches_the_lanes(gpu: Target) -> None:
    per_cycle = FP32_LANES[gpu.architecture] * (1 if gpu.vendor == "amd" else 2)
    assert gpu.multiprocessors * per_cycle * gpu.clock == pytest.approx(gpu.peak["float32"], rel=0.01)


@every_target
def test_narrower_formats_are_no_slower(gpu: Target) -> None:
    order = ("float32", "tf32", "float16", "float8", "int8")
    rates = [gpu.peak[dtype] for dtype in order if dtype in gpu.peak]
    assert rates == sorted(rates)
    assert set(gpu.peak) <= set(DTYPES)
    assert gpu.peak.get("bfloat16", gpu.peak["float16"]) == gpu.peak["float16"]


@every_target
def test_limits_are_consistent(gpu: Target) -> None:
    assert gpu.shared_memory_per_block <= gpu.shared_memory_per_block_optin <= gpu.shared_memory_per_multiprocessor
    assert gpu.max_threads_per_multiprocessor % gpu.warp_size == 0
    assert gpu.max_threads_per_block <= gpu.max_threads_per_multiprocessor
    assert gpu.sources


@pytest.mark.parametrize(
    ("name", "per_cycle"), [("a100", 2048), ("l4", 1024), ("t4", 1024), ("rtx4090", 512), ("mi300x", 2048)]
)
def test_float16_rate_matches_the_tensor_cores(name: str, per_cycle: int) -> None:
    """Operations per multiprocessor and cycle, accumulating in float32, by the vendors' whitepapers.

    Hopper and Blackwell run their tensor cores below the maximum clock.
    """
    gpu = target(name)
    assert gpu.multiprocessors * per_cycle * gpu.clock == pytest.approx(gpu.peak["float16"], rel=0.01)


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "l4", "rtx4090", "t4", "mi300x"])
def test_halving_the_format_doubles_the_rate(name: str) -> None:
    peak = target(name).peak
    ladder = [("tf32", "float16"), ("float16", "float8"), ("float16", "int8" if name != "rtx4090" else "float8")]
    for wide, narrow in ladder:
        if wide in peak and narrow in peak:
            assert peak[narrow] == pytest.approx(2 * peak[wide], rel=0.03), (wide, narrow)


def test_unsupported_formats_have_no_rate() -> None:
    assert not {"bfloat16", "tf32", "float8"} & set(target("t4").peak)
    assert "float8" not in target("a100").peak


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("nvidia-h100", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("RTX 4090", "rtx4090"),
        ("rtx-4090", "rtx4090"),
        ("GeForce RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_common_spellings_of_a_gpu_are_accepted(written: str, name: str) -> None:
    assert target(written).name == name


@pytest.mark.parametrize(("written", "meant"), [("h10", "h100"), ("mi300", "mi300x"), ("rtx4900", "rtx4090")])
def test_unknown_gpu_suggests_a_similar_name(written: str, meant: str) -> None:
    with pytest.raises(UnknownTargetError, match=f"did you mean '{meant}'"):
        target(written)


def test_dissimilar_gpu_name_lists_all() -> None:
    with pytest.raises(UnknownTargetError, match="a100, h100, h200, b200, l4, t4, rtx4090, mi300x") as caught:
        target("abacus")
    assert "did you mean" not in str(caught.value)


def test_local_devices_are_not_virtual_targets() -> None:
    assert not any(map(is_virtual, ("", "cpu", "cuda", "cuda:1")))
    assert is_virtual("h100")
