"""Slurm: site files, ranks over nodes, the script of a job, and the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import ROOT, planned
from slurm_runs import SMOKE, ckptbench, on_nodes, site_file

from harness.driver import slurm
from harness.driver.slurm import Request, Site
from harness.run.errors import UsageError

pytest_plugins = ["shared_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nobodys_site_file")]


# The site file


def test_a_site_file_holds_the_options_for_slurm(tmp_path: Path) -> None:
    lines = [
        'account = "lab"',
        'partition = "gpu"',
        'time = "01:00:00"',
        "gpus_per_node = 4",
        'modules = ["gcc"]',
        'extra_sbatch = ["-q high"]',
    ]
    assert slurm.read_site(site_file(tmp_path, "\n".join(lines))) == Site(
        account="lab",
        partition="gpu",
        time="01:00:00",
        gpus_per_node=4,
        modules=("gcc",),
        extra_sbatch=("-q high",),
    )


def test_without_a_site_file_slurm_decides_itself(nobodys_site_file: Path) -> None:
    assert slurm.read_site(None) == Site()
    nobodys_site_file.parent.mkdir(parents=True)
    nobodys_site_file.write_text('partition = "debug"')
    assert slurm.read_site(None) == Site(partition="debug")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('partion = "gpu"', "unknown key 'partion'; did you mean 'partition'?"),
        ("time = 60", "time: input should be a valid string, not 60"),
        ("gpus_per_node = 0", "gpus_per_node: input should be greater than or equal to 1, not 0"),
        ('modules = "gcc"', "modules: "),
        ("account = ", "is not valid TOML"),
    ],
)
def test_a_mistake_in_a_site_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = site_file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        slurm.read_site(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_site_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read .*none.toml: No such file"):
        slurm.read_site(tmp_path / "none.toml")


# Ranks over nodes


def test_ranks_are_spread_evenly_and_a_single_one_stays_on_the_first_node() -> None:
    assert [item.case.nodes for item in on_nodes(2, 1, 2, 4)] == [0, 2, 2]


def test_the_number_of_nodes_makes_another_case() -> None:
    assert len({on_nodes(nodes, 4)[0].case.id for nodes in (1, 2, 4)}) == 3


@pytest.mark.parametrize(
    ("nodes", "worlds", "message"),
    [
        (
            2,
            [2, 3],
            "a world of 3 cannot be spread evenly over 2 nodes: --world takes multiples of 2 here",
        ),
        (4, [2], "a world of 2 cannot be spread evenly over 4 nodes"),
        (2, [1], "every case has one rank, which needs no 2 nodes"),
        (0, [1], "--nodes is a number from 1 on, not 0"),
    ],
)
def test_ranks_that_do_not_fit_the_nodes_are_refused(
    nodes: int, worlds: list[int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        on_nodes(nodes, *worlds)


def test_inside_a_job_the_run_is_measured_and_not_submitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = on_nodes(2, 4)
    assert slurm.is_outside(plan)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    for launched in (plan, [planned()]):
        with pytest.raises(
            UsageError, match="this shell holds a Slurm job and is on none of its nodes"
        ):
            slurm.is_outside(launched)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert not slurm.is_outside(plan)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    with pytest.raises(
        UsageError, match="the run wants 2 nodes, and the Slurm job in which this runs has 1"
    ):
        slurm.is_outside(plan)


# The script


def test_the_script_asks_for_the_nodes_and_resumes_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "my results" / "run"
    script = Request(
        on_nodes(2, 2, 8), Site(account="lab", partition="gpu", time="01:00:00"), timeout_s=60.0
    ).script(folder)
    assert script.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=ckptbench",
        "#SBATCH --account=lab",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=01:00:00",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        f"#SBATCH --chdir={Path.cwd()}",
        f"#SBATCH '--output={folder}/slurm-%j.out'",
        "#SBATCH --no-requeue",
        "set -e",
        f'export PYTHONPATH={ROOT}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        f"exec {sys.executable} -m harness.cli run --resume '{folder}' --timeout 60.0",
    ]


def test_modules_are_loaded_in_a_login_shell_and_options_of_the_site_are_passed_on(
    tmp_path: Path,
) -> None:
    lines = (
        Request(on_nodes(1, 2), Site(modules=("gcc/13", "cuda"), extra_sbatch=("--exclusive",)))
        .script(tmp_path)
        .splitlines()
    )
    assert lines[0] == "#!/bin/bash -l"
    assert lines[lines.index("set -e") :][:3] == [
        "set -e",
        "module load gcc/13",
        "module load cuda",
    ]
    assert "#SBATCH --exclusive" in lines[: lines.index("set -e")]


@pytest.mark.parametrize(("site", "gpus"), [(Site(), 2), (Site(gpus_per_node=8), 8)])
def test_gpus_are_asked_for_where_they_are_measured(site: Site, gpus: int, tmp_path: Path) -> None:
    assert f"#SBATCH --gpus-per-node={gpus}\n" in Request(
        on_nodes(2, 4, device="cuda"), site
    ).script(tmp_path)
    assert "--gpus-per-node" not in Request(on_nodes(2, 4), site).script(tmp_path)


# The command line


def test_a_dry_run_prints_the_script_and_needs_no_slurm(tmp_path: Path) -> None:
    done = ckptbench(
        "run",
        *SMOKE,
        "--world",
        "4",
        "--nodes",
        "2",
        "--dry-run",
        "--results",
        str(tmp_path / "results"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "#!/bin/bash\n#SBATCH --job-name=ckptbench\n#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=2\n"
    )
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("option", [["--nodes", "2"], ["--site", "site.toml"], ["--dry-run"]])
def test_options_of_slurm_are_refused_for_another_launcher(
    option: list[str], tmp_path: Path
) -> None:
    done = ckptbench("run", "smoke", "--framework", "raw", *option, "--results", str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2,
        f"ckptbench: {option[0]} needs --launcher slurm\n",
    )


def test_without_slurm_the_message_names_its_commands(tmp_path: Path) -> None:
    done = ckptbench("run", *SMOKE, "--results", str(tmp_path), environment={"PATH": "/nowhere"})
    assert (
        "launcher slurm needs Slurm's commands, "
        "and on the path there is no sbatch, scontrol, scancel" in done.stderr
    )
    assert done.returncode == 2
