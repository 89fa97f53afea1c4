"""`--model`: a model of the user's own, from the command line to the table."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from stubs import Ended, command

from harness.cli import measuring
from harness.driver import own_models, planning, preflight, suite
from harness.driver.catalog import frameworks
from harness.run import store
from harness.run.errors import UsageError
from harness.wire.case import OwnModel
from harness.worker import own_models as worker_models

RAW = frameworks()["raw"]
TEXT = """
import numpy as np


def make():
    return {"one": np.random.rand(300, 50).astype("float32"), "two": np.arange(7)}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    return path


def run(file: Path, *words: str, suite_name: str = "smoke") -> Ended:
    return command(
        *("run", suite_name, "--framework", "raw", "--model", f"{file}:make"),
        *("--results", str(file.parent / "results"), "--dir", str(file.parent), *words),
        *(() if "--python" in words else ("--python", f"raw={sys.executable}")),
    )


def rows(file: Path) -> list[dict[str, Any]]:
    shown = command("show", "latest", "--results", str(file.parent / "results"), "--format", "json")
    found: list[dict[str, Any]] = json.loads(shown.output)
    return found


def sentence(ended: Ended) -> str:
    assert (ended.status, ended.escaped) == (2, "")
    assert ended.errors.startswith("ckptbench: ")
    return ended.errors.removeprefix("ckptbench: ").strip()


def looked_at(file: Path) -> OwnModel:
    named = own_models.named(f"{file}:make")
    return own_models.looked_at(named, RAW, Path(sys.executable), "cpu")


def test_what_a_text_leaves_behind_is_ended_before_anything_is_measured(file: Path) -> None:
    left = "import subprocess\nsubprocess.Popen(['sleep', '61.5'], start_new_session=True)\n"
    file.write_text(left + TEXT)
    looked_at(file)
    command_lines = [seen.info["cmdline"] for seen in psutil.process_iter(["cmdline"])]
    assert ["sleep", "61.5"] not in command_lines


def test_a_model_is_measured_by_every_method_that_is_named(file: Path) -> None:
    ended = run(file, "--method", "direct", "--method", "deepfreeze-sync")
    assert ended.status == 0, ended.errors
    found = rows(file)
    assert [(row["method"], row["status"], row["verified"]) for row in found] == [
        ("direct", "ok", True),
        ("deepfreeze-sync", "ok", True),
    ]
    assert {row["workload"] for row in found} == {"train.py:make"}
    assert found[0]["state_bytes"] == 300 * 50 * 4 + 7 * 8 + 32 + 8
    assert "Your checkpoint is" in ended.output
    # Plain files have no lines that a script could hold.
    assert "--how" not in ended.output


@pytest.mark.slow
@pytest.mark.patient
def test_other_experiments_and_ranks_measure_it_too(file: Path) -> None:
    for name in ("resume", "sizes", "train"):
        ended = run(file, "--method", "direct", "--world", "1,2", suite_name=name)
        assert ended.status == 0, (name, ended.errors, ended.output)


def test_a_page_says_how_to_measure_it_again(file: Path) -> None:
    assert run(file, "--method", "direct").status == 0
    page = file.parent / "page"
    results = str(file.parent / "results")
    command("report", "latest", "--results", results, "--out", str(page))
    assert f"--model {file}:make" in (page / "report.html").read_text()


def test_runs_of_different_texts_are_never_the_same_case(file: Path) -> None:
    first = looked_at(file)
    file.write_text(TEXT + "# other\n")
    second = looked_at(file)
    moved = shutil.copy(file, file.parent / "copy")
    assert Path(moved).exists()
    smoke = suite.load("smoke")
    ids = [planning.plan(smoke, [RAW], model=each)[0].case.id for each in (first, second)]
    assert ids[0] != ids[1]


def test_the_folder_of_a_text_does_not_tell_cases_apart(file: Path) -> None:
    elsewhere = file.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(file, elsewhere / "train.py")
    models = [looked_at(file), looked_at(elsewhere / "train.py")]
    ids = {planning.plan(suite.load("smoke"), [RAW], model=each)[0].case.id for each in models}
    assert len(ids) == 1


def test_a_text_that_changed_is_not_mixed_into_a_run(file: Path) -> None:
    assert run(file, "--method", "direct").status == 0
    file.write_text(TEXT + "\n# another\n")
    results = str(file.parent / "results")
    again = command("run", "--resume", "latest", "--results", results)
    assert "has changed since the run began" in sentence(again)
    file.unlink()
    again = command("run", "--resume", "latest", "--results", results)
    assert "is no longer there" in sentence(again)


@pytest.mark.parametrize(
    "text", ["train.py", "train:make", "train.py:", ":make", "train.py:ma-ke", "train.txt:make"]
)
def test_what_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--model must be FILE\.py:FUNCTION"):
        own_models.named(text)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file .*/nowhere.py"):
        own_models.named(f"{tmp_path}/nowhere.py:make")


def test_a_model_belongs_to_one_framework(file: Path) -> None:
    ended = command("run", "smoke", "--model", f"{file}:make", "--framework", "all")
    assert "--model is a model of one framework" in sentence(ended)


def test_a_workload_beside_a_model_is_refused(file: Path) -> None:
    assert "--workload names a workload of this project" in sentence(
        run(file, "--workload", "resnet50")
    )


def test_a_suite_of_our_own_workloads_is_refused(file: Path) -> None:
    assert "leave --model out" in sentence(run(file, suite_name="recovery"))


def test_a_text_that_kills_its_process_is_told(file: Path) -> None:
    file.write_text("import os, signal\ndef make():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    assert "its process ended with signal SIGKILL" in sentence(run(file))


def bare_interpreter(folder: Path, *packages: Path) -> Path:
    """Make an environment that has these packages alone, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/*/site-packages")
    for package in packages:
        (site / package.name).symlink_to(package)
    return folder / "bin" / "python"


def told_by(file: Path, framework: str, interpreter: Path) -> str:
    """Return what is said about a model that an interpreter is to build."""
    return sentence(
        command(
            *("run", "smoke", "--framework", framework, "--model", f"{file}:make"),
            *("--python", f"{framework}={interpreter}", "--dir", str(file.parent)),
        )
    )


def test_an_interpreter_without_numpy_is_told_in_one_sentence(file: Path) -> None:
    interpreter = bare_interpreter(file.parent / "bare")
    told = told_by(file, "raw", interpreter)
    assert f"{interpreter} lacks the module 'numpy'" in told
    assert told.endswith("adapters/raw/requirements.txt lists")


def test_an_interpreter_without_the_framework_is_told_in_one_sentence(file: Path) -> None:
    installed = Path(np.__file__).parent
    libraries = installed.with_name("numpy.libs")
    interpreter = bare_interpreter(file.parent / "bare", installed, libraries)
    told = told_by(file, "jax", interpreter)
    assert f"{interpreter} lacks the module 'jax'" in told
    assert told.endswith("adapters/jax/requirements.txt lists")
    file.write_text(f"import nowhere\n{TEXT}")
    told = told_by(file, "raw", interpreter)
    assert told.startswith(
        f"train.py:1: ModuleNotFoundError: No module named 'nowhere'; {interpreter}"
    )


def test_what_an_interpreter_lacks_for_a_method_is_told_before_the_run(file: Path) -> None:
    installed = Path(np.__file__).parent
    libraries = installed.with_name("numpy.libs")
    interpreter = bare_interpreter(file.parent / "bare", installed, libraries)
    named = ("--method", "direct", "--method", "deepfreeze", "--method", "deepfreeze-sync")
    ended = run(file, *named, "--python", f"raw={interpreter}")
    told = f"{interpreter} lacks the module 'xxhash', which deepfreeze and deepfreeze-sync need"
    assert ended.errors.startswith(f"{told}\n")
    assert [row["status"] for row in rows(file)] == ["ok", "failed", "failed"]


@pytest.mark.parametrize(
    ("worlds", "fewer_ranks"), [([1], ""), ([1, 2], ", or give fewer ranks with --world")]
)
def test_a_model_that_does_not_fit_into_memory_is_told_what_helps(
    file: Path, monkeypatch: pytest.MonkeyPatch, worlds: list[int], fewer_ranks: str
) -> None:
    plan = planning.plan(suite.load("smoke"), [RAW], model=looked_at(file), worlds=worlds)
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 1 << 20)
    with pytest.raises(UsageError) as raised:
        measuring.refuse_what_does_not_fit(plan, file.parent)
    helps = f"free memory on the machine, or have make return a smaller model{fewer_ranks}"
    assert str(raised.value).endswith(f"; {helps}")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 3", "train.py:2: make: it must return a dictionary of numpy arrays, not an int"),
        ("return {'a': [1]}", "'a' must be a numpy array of numbers, not a list"),
        ("return {'a': np.array(['x'])}", "not an array of <U1"),
        ("return nothing", "train.py:3: NameError"),
        ("import nowhere", "train.py:3: ModuleNotFoundError"),
        ("raise ValueError('one\\n  two')", "train.py:3: ValueError: one two"),
        ("raise ValueError(1000 * 'long ')", f"ValueError: {80 * 'long '}…"),
        ("return type('odd\\n  type', (), {})()", "not an odd type"),
        ("return {1000 * 'long ': 1}", "train.py:2: make: 'long long"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(file: Path, body: str, expected: str) -> None:
    file.write_text(f"import numpy as np\ndef make():\n    {body}\n")
    told = sentence(run(file))
    assert expected in told
    assert "\n" not in told
    assert len(told) < 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "def build():\n    pass\ndef main():\n    pass\n",
            "no function 'make'; it has build, main",
        ),
        ("class make:\n    pass\n", "train.py: make is a class; name a function that makes the"),
    ],
)
def test_a_wrong_name_is_told_with_what_there_is(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    assert expected in sentence(run(file))


def test_a_long_import_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_models, "_LONG_IMPORT_S", 0.5)
    file.write_text(f"import time\ntime.sleep(0.6)\n{TEXT}")
    ended = run(file, "--method", "direct")
    assert re.match(r"importing train\.py took \d+ s, and every process of the run", ended.errors)
    assert ended.status == 0


LAYERS = "import numpy as np\nROWS = 300\n"


@pytest.fixture
def with_modules(file: Path) -> Path:
    """Return a text whose `make` imports modules beside it and below, of which there are others."""
    (file.parent / "layers.py").write_text(LAYERS)
    package = file.parent / "parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("COLUMNS = 50\n")
    (file.parent / "unused.py").write_text("raise SystemExit\n")
    file.write_text("""
import layers
from numpy import random


def make():
    from parts import sizes
    return {"one": random.rand(layers.ROWS, sizes.COLUMNS).astype("float32")}
""")
    return file


def test_the_modules_beside_a_text_belong_to_its_digest(with_modules: Path) -> None:
    first = looked_at(with_modules)
    assert first.modules == ("layers.py", "parts/__init__.py", "parts/sizes.py")
    (with_modules.parent / "unused.py").write_text("# other\n")
    assert looked_at(with_modules) == first
    (with_modules.parent / "layers.py").write_text(f"{LAYERS}# other\n")
    second = looked_at(with_modules)
    smoke = suite.load("smoke")
    ids = [planning.plan(smoke, [RAW], model=each)[0].case.id for each in (first, second)]
    assert ids[0] != ids[1]


def test_a_text_without_modules_keeps_the_digest_of_its_bytes(file: Path) -> None:
    model = looked_at(file)
    assert (model.modules, model.digest) == ((), hashlib.sha256(TEXT.encode()).hexdigest()[:8])


def test_a_run_records_the_modules_and_refuses_changed_ones(with_modules: Path) -> None:
    ended = run(with_modules, "--method", "direct")
    assert ended.status == 0, ended.errors
    results = with_modules.parent / "results"
    stored = store.Run(store.find(results, store.LATEST))
    assert stored.plan[0].case.model == looked_at(with_modules)
    (with_modules.parent / "layers.py").write_text(f"{LAYERS}# other\n")
    again = command("run", "--resume", "latest", "--results", str(results))
    assert "train.py or a module that it imports (layers.py, " in sentence(again)
    (with_modules.parent / "layers.py").unlink()
    again = command("run", "--resume", "latest", "--results", str(results))
    assert f"{with_modules.parent}/layers.py is no longer there" in sentence(again)


def test_a_module_that_only_a_measured_process_imports_ends_the_run(with_modules: Path) -> None:
    text = with_modules.read_text()
    # The first look does no job, so it traces nothing.
    is_job = "import sys\n    if 'harness.worker.tracing' in sys.modules: import unused"
    (with_modules.parent / "unused.py").write_text("")
    with_modules.write_text(text.replace("from parts", f"{is_job}\n    from parts"))
    ended = run(with_modules, "--method", "direct")
    assert ended.status == 1
    (row,) = rows(with_modules)
    assert "train.py has imported unused.py only now" in row["reason"]


def test_files_of_an_interpreter_and_of_libraries_are_no_modules_of_the_users(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, name in (("prefix", "venv"), ("base_prefix", "conda")):
        folder = file.parent / name
        folder.mkdir()
        (folder / f"of_{name}.py").touch()
        monkeypatch.setattr(sys, variable, str(folder))
        monkeypatch.syspath_prepend(folder)
    scratch = file.parent / "scratch"
    scratch.mkdir()
    (scratch / "compiled.py").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.syspath_prepend(scratch)
    (file.parent / "own.py").touch()
    monkeypatch.syspath_prepend(file.parent)
    for name in ("of_venv", "of_conda", "compiled", "own"):
        importlib.import_module(name)
        # The test's end takes away the entry that the import makes.
        monkeypatch.setitem(sys.modules, name, sys)
        del sys.modules[name]
        importlib.import_module(name)
    assert worker_models.modules_of(file) == ("own.py",)


def test_the_program_under_the_name_that_multiprocessing_gives_it_is_not_the_users(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = file.parent / "program.py"
    spec = importlib.util.spec_from_file_location("harness.worker.__main__", program)
    assert spec is not None
    monkeypatch.setitem(sys.modules, "__mp_main__", importlib.util.module_from_spec(spec))
    assert worker_models.modules_of(file) == ()
