"""The manifest captures this machine, hides its names, and sets unlike runs apart."""

from __future__ import annotations

import json
import platform
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.driver import machine
from harness.driver.machine import Mount, capture
from harness.run.manifest import Manifest, differences


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Return this machine's manifest."""
    return capture(tmp_path_factory.mktemp("scratch"))


def test_this_machine_is_described(here: Manifest) -> None:
    assert here.logical_cores >= 1
    assert here.memory_bytes > 2**28
    assert here.kernel == platform.release()
    assert here.filesystem
    assert here.free_bytes > 0
    assert len(here.machine) == 12


def test_the_machine_is_the_same_at_each_capture(here: Manifest, tmp_path: Path) -> None:
    again = capture(tmp_path)
    assert again.machine == here.machine
    assert differences(here, again) == []


def test_a_machine_of_the_same_image_with_another_gpu_is_another(
    here: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {here.machine}
    for gpu in ("NVIDIA H100", "NVIDIA H200"):
        monkeypatch.setattr(machine, "gpu_names", lambda gpu=gpu: (gpu,))
        ids.add(capture(tmp_path).machine)
    assert len(ids) == 3


def test_the_host_has_no_name_in_it(here: Manifest) -> None:
    assert socket.gethostname() not in json.dumps(here.to_json())


def test_it_survives_json(here: Manifest) -> None:
    with_gpus = replace(here, gpus=("a GPU", "a GPU"))
    assert Manifest.from_json(json.dumps(with_gpus.to_json())) == with_gpus


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("machine", "000000000000"),
        ("cpu_model", "another"),
        ("logical_cores", 1000),
        ("memory_bytes", 2**50),
        ("kernel", "2.6"),
        ("filesystem", "fat"),
        ("mount_options", "ro"),
        ("device", "floppy"),
        ("gpus", ("a GPU",)),
        ("transparent_hugepages", "sometimes"),
        ("hypervisor", None),
    ],
)
def test_the_fields_in_which_runs_differ_are_named(here: Manifest, field: str, value: Any) -> None:
    other = replace(here, **{field: value})
    assert differences(here, other) == differences(other, here) == [field]


def test_what_changes_from_run_to_run_does_not_matter(here: Manifest) -> None:
    later = replace(
        here, free_bytes=1, load_average=9.0, commit="abc", dirty=True, driver_python="3.99"
    )
    assert differences(here, later) == []


def test_a_little_more_memory_after_a_boot_does_not_matter(here: Manifest) -> None:
    assert differences(here, replace(here, memory_bytes=here.memory_bytes + 2**20)) == []


MOUNTS = r"""22 1 0:21 / /proc rw - proc proc rw
27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
28 27 0:30 / /scratch rw - tmpfs tmpfs rw
29 27 0:31 / /scratch rw,noatime - nfs4 filer:/export/me rw,vers=4,addr=10.0.0.7,clientaddr=10.0.0.8
30 27 0:32 / /with\040space rw - overlay overlay rw,lowerdir=/a:/b,xino=off
31 27 0:33 /home /home rw - btrfs /dev/nvme0n1p2 rw,subvol=/home
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the module at a machine made of files, and return its /sys."""
    proc, sys_ = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(MOUNTS)
    (sys_ / "dev" / "block").mkdir(parents=True)
    (sys_ / "class" / "block").mkdir(parents=True)
    monkeypatch.setattr(machine, "PROC", proc)
    monkeypatch.setattr(machine, "SYS", sys_)
    return sys_


@pytest.mark.parametrize(
    ("path", "point", "options"),
    [
        ("/scratch/run", "/scratch", "rw,noatime,vers=4"),
        ("/scratchy", "/", "rw,relatime,discard"),
        ("/with space/x", "/with space", "rw,xino=off"),
        ("/home/me", "/home", "rw"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_the_mount_of_a_path_is_found_and_its_private_options_left_out(
    path: str, point: str, options: str
) -> None:
    mount = machine.mount_of(Path(path))
    assert (mount.point, mount.options) == (point, options)


def _disk(sys_: Path, name: str, partition: str) -> None:
    disk = sys_ / "devices" / name
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "rotational").write_text("0\n")
    (disk / "queue" / "scheduler").write_text("none [mq-deadline] kyber\n")
    (disk / partition).mkdir()
    (disk / partition / "partition").write_text("1\n")


def test_a_partition_counts_as_its_disk(fake: Path) -> None:
    _disk(fake, "vda", "vda1")
    (fake / "dev" / "block" / "254:1").symlink_to(fake / "devices" / "vda" / "vda1")
    device = machine.block_device(machine.mount_of(Path("/etc")))
    assert device == machine.BlockDevice("vda", False, "mq-deadline")


def test_a_file_system_with_a_number_of_its_own_is_found_by_its_source(fake: Path) -> None:
    _disk(fake, "nvme0n1", "nvme0n1p2")
    (fake / "class" / "block" / "nvme0n1p2").symlink_to(fake / "devices" / "nvme0n1" / "nvme0n1p2")
    device = machine.block_device(machine.mount_of(Path("/home")))
    assert device is not None
    assert device.name == "nvme0n1"


@pytest.mark.usefixtures("fake")
def test_a_network_file_system_has_no_disk() -> None:
    assert machine.block_device(machine.mount_of(Path("/scratch"))) is None


def test_a_mount_whose_disk_is_hidden_has_none() -> None:
    assert machine.block_device(Mount("/", "999:999", "ext4", "/dev/no-such-disk", "rw")) is None


@pytest.mark.parametrize(
    ("cpuinfo", "model", "hypervisor"),
    [
        ("model name\t: Some CPU\nflags\t\t: fpu hypervisor sse\n", "Some CPU", True),
        ("model name\t: Some CPU\nflags\t\t: fpu sse\n", "Some CPU", False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", platform.machine(), None),
    ],
)
def test_the_processor_says_whether_it_is_virtual(
    fake: Path, cpuinfo: str, model: str, hypervisor: bool | None
) -> None:
    (machine.PROC / "cpuinfo").write_text(cpuinfo)
    assert (machine.cpu_model(), machine.hypervisor()) == (model, hypervisor)


def _nvidia_smi(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("echo 'GPU A'; echo 'GPU B'", ("GPU A", "GPU B")),
        ("echo 'no devices were found'; exit 6", ()),
        ("true", ()),
    ],
)
def test_gpus_are_those_that_nvidia_smi_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: tuple[str, ...]
) -> None:
    _nvidia_smi(tmp_path, body, monkeypatch)
    assert machine.gpu_names() == expected


def test_there_need_be_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu_names() == ()
