"""Transfers to a GPU and from it, through a driver whose GPU is host memory."""

import ctypes

import pytest

from adapters.shared import cuda_driver
from adapters.shared.cuda_driver import DriverError
from harness.worker.device_link import RING_BYTES, DeviceLink

pytest_plugins = ["shared_fixtures"]


@pytest.mark.parametrize("total_bytes", [1, RING_BYTES, 3 * RING_BYTES + 5])
def test_a_transfer_takes_time_and_gives_everything_back(driver, total_bytes):
    link = DeviceLink(0)
    assert link.to_host_ns(total_bytes) > 0
    assert link.to_device_ns(total_bytes) > 0
    assert ctypes.c_int.in_dll(driver, "live").value == 0


@pytest.mark.parametrize("total_bytes", [1, RING_BYTES, 3 * RING_BYTES + 5])
def test_a_transfer_moves_all_bytes_after_a_first_touch_in_both_directions(driver, total_bytes):
    DeviceLink(0).to_host_ns(total_bytes)
    moved_bytes = ctypes.c_size_t.in_dll(driver, "moved_bytes").value
    assert moved_bytes == total_bytes + 2 * RING_BYTES


def test_a_failing_call_is_named_in_the_drivers_words(driver):
    with pytest.raises(DriverError, match=r"cuDeviceGet of .* failed: invalid argument"):
        DeviceLink(1).to_host_ns(1)


def test_a_machine_without_a_driver_has_no_link(monkeypatch):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(OSError, match="libcuda-of-nobody"):
        DeviceLink(0).to_host_ns(1)
