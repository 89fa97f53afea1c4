"""Figures of several runs: which rows they show, what they say is missing, and their files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
import records
from conftest import ROOT
from drawing import (
    NEWER,
    here,
    item,
    labels_of,
    on_two_ranks,
    only,
    points_of,
    saved,
    stored,
    trained,
    values_of,
    words_of,
)
from matplotlib.colors import to_rgba
from references import references
from typer.testing import CliRunner

from harness import experiments
from harness.analysis import figures, pools
from harness.analysis.figures import Saved
from harness.analysis.runs import REFERENCE, ReadRun
from harness.cli.application import app
from harness.run import store
from harness.run.stored import folders

FAST = (0.3,) * 3  # seconds until a save is finished; it is durable 0.1 s later
SLOW = (0.7,) * 3
STAMP = re.compile(r"\b20\d{6}-\d{6}(?=-)")


@pytest.fixture(scope="module")
def reference() -> list[ReadRun]:
    return references()


def test_figures_are_those_of_the_experiments_in_the_order_of_the_page(tmp_path: Path) -> None:
    drawing = [name for name in experiments.names() if experiments.has_part(name, "figure")]
    assert drawing == ["cost", "train", "resume", "faults", "killed_rank", "recovery", "sizes"]
    one = item("one")
    again = item("one", experiment="train", every=2)
    run = stored(tmp_path, [(again, trained(again, 0.05)), (one, saved(one))])
    families = [drawn.name.split("-")[0] for drawn in figures.draw([run])]
    assert families == ["cost", "durability", "training", "asynchrony", "size"]


def test_cases_that_differ_in_an_experiments_own_keys_stay_two(tmp_path: Path) -> None:
    three = item("one", settings={"times": 3})
    five = item("one", settings={"times": 5})
    run = stored(tmp_path, [(three, saved(three)), (five, saved(five))])
    (pool,) = pools.pools([run])
    assert len(pool.rows("cost")) == 2


def test_no_runs_give_no_figures() -> None:
    assert figures.draw([]) == []


def test_an_interrupted_case_is_missing_and_a_case_that_failed_has_no_bar(tmp_path: Path) -> None:
    good = item("good", default=True)
    cut = item("cut")
    wrong = item("wrong")
    failure = records.failure(wrong.case.id, reason="wrong bytes")
    content = [(good, saved(good)), (cut, saved(cut)[:3]), (wrong, [*saved(wrong), failure])]
    drawn = only(figures.draw([stored(tmp_path, content)]), "cost")
    assert [sentence.split(",")[0] for sentence in drawn.missing] == ["raw cut", "raw wrong"]
    assert "interrupted" in drawn.missing[0]
    assert drawn.missing[1].endswith("failed in save: wrong bytes.")
    times = drawn.figure.axes[0]
    assert list(points_of(times, "durable_s")) == [0]
    first = times.get_yticklabels()[0]
    assert (first.get_text(), first.get_fontweight()) == ("good (default)", "bold")


def test_runs_of_nothing_but_failures_are_drawn_with_their_reasons(tmp_path: Path) -> None:
    broken = item("broken")
    content = [(broken, [records.failure(broken.case.id, reason="no disk")])]
    drawn = only(figures.draw([stored(tmp_path, content)]), "cost")
    assert "no disk" in words_of(drawn)
    assert figures.save(drawn, tmp_path).svg.exists()


def test_of_runs_that_measured_as_much_the_newest_counts_and_names_what_it_lacks(
    tmp_path: Path,
) -> None:
    one = item("one")
    two = item("two")
    three = item("three")
    old = stored(tmp_path, [(one, saved(one, FAST)), (two, saved(two, FAST))])
    content = [(one, saved(one, SLOW)), (three, saved(three, (0.8,) * 3))]
    new = stored(tmp_path, content, name=NEWER)
    drawn_figures = figures.draw([new, old])
    drawn = only(drawn_figures, "cost")
    assert values_of(drawn.figure.axes[0], "durable_s") == pytest.approx([0.8, 0.9])
    assert drawn.caption.endswith(f"Run {NEWER}.")
    assert drawn.missing == (
        "raw two, resnet50 small on cpu: not drawn, because run 20260101-000000-a measured it at "
        "another time than the rows shown.",
    )
    lines = labels_of(only(drawn_figures, "durability").figure.axes[0])
    assert set(lines) == {"one", "two", "three"}, "a verdict is the same at every moment"


def test_a_run_that_was_broken_off_takes_no_place_of_a_whole_one(tmp_path: Path) -> None:
    one = item("one")
    two = item("two")
    old = stored(tmp_path, [(one, saved(one, FAST)), (two, saved(two, FAST))])
    new = stored(tmp_path, [(one, saved(one, SLOW)), (two, [])], name=NEWER)
    drawn = only(figures.draw([new, old]), "cost")
    assert values_of(drawn.figure.axes[0], "durable_s") == pytest.approx([0.4, 0.4])
    assert drawn.missing == ()


def test_a_method_that_only_more_ranks_measured_is_named(tmp_path: Path) -> None:
    one = item("one")
    two = on_two_ranks("two")
    drawn = figures.draw([stored(tmp_path, [(one, saved(one)), (two, saved(two))])])
    sentence = (
        "raw two (flat), resnet50 small on cpu on 2 ranks: not drawn, because no run measured it "
        "on one rank."
    )
    assert only(drawn, "cost-").missing == (sentence,)
    assert only(drawn, "size-").missing == (sentence,)


@pytest.mark.parametrize(
    ("stated", "cause"),
    [
        (
            'ValueError: in user code: File "a.py", line 1, in f ** x = [y] ValueError: only one. '
            "See z.",
            "ValueError: only one. See z.",
        ),
        (
            'rank 1: a.BError: File "a.py", line 1, in f g() File "b.py", line 2, in g '
            "jax.CError: last",
            "rank 1: jax.CError: last",
        ),
        (
            "RuntimeError: TypeError on rank 0: finfo()",
            "RuntimeError: TypeError on rank 0: finfo()",
        ),
        ('OSError: File "a", line 2 is damaged', 'OSError: File "a", line 2 is damaged'),
    ],
)
def test_a_reason_is_the_error_at_the_end_of_a_traceback(
    tmp_path: Path, stated: str, cause: str
) -> None:
    one = item("one")
    good = item("good")
    content = [(one, [records.failure(one.case.id, reason=stated)]), (good, saved(good))]
    drawn = only(figures.draw([stored(tmp_path, content)]), "cost")
    times, shares = drawn.figure.axes
    note = next(text for text in times.texts if text.get_text().startswith("failed"))
    assert note.get_text() == f"failed in save: {cause}"
    ground = note.get_bbox_patch().get_facecolor()
    assert ground == to_rgba("white"), "no line of the panel runs through a letter"
    assert times.get_zorder() > shares.get_zorder(), "the panel beside hides none of it"
    assert drawn.missing[0].endswith(f": failed in save: {cause.rstrip('.')}.")


def test_unlike_machines_get_figures_of_their_own(tmp_path: Path) -> None:
    one = item("one")
    elsewhere = replace(here(), machine="feedfacecafe")
    runs = [
        stored(tmp_path, [(one, saved(one, FAST))]),
        stored(tmp_path, [(one, saved(one, SLOW))], name=NEWER, on=elsewhere),
    ]
    first, second = [drawn for drawn in figures.draw(runs) if drawn.name.startswith("cost")]
    assert first.name != second.name
    assert here().machine in first.caption
    assert elsewhere.machine in second.caption
    assert values_of(first.figure.axes[0], "durable_s") == pytest.approx([0.4])
    assert values_of(second.figure.axes[0], "durable_s") == pytest.approx([0.8])


def test_files_differ_by_their_machine_and_then_by_a_number(tmp_path: Path) -> None:
    other = replace(here(), machine="other")
    machines = [here(), other, replace(other, kernel="newer")]
    one = item("one")
    runs = []
    for number, machine in enumerate(machines):
        name = f"20260101-00000{number}-a"
        runs.append(stored(tmp_path, [(one, saved(one))], name=name, on=machine))
    start = "cost-resnet50-small-float32-cpu"
    assert only(figures.draw(runs[:1]), "cost").name == start
    names = {drawn.name for drawn in figures.draw(runs) if drawn.name.startswith("cost")}
    assert names == {f"{start}-{here().machine}", f"{start}-other-1", f"{start}-other-2"}


def test_the_runs_with_most_rows_of_an_experiment_count_beside_newer_ones(tmp_path: Path) -> None:
    one = item("one")
    two = item("two")
    train = item("one", experiment="train", every=2)
    other = replace(here(), machine="other")
    fuller = stored(tmp_path, [(one, saved(one)), (two, saved(two))])
    content = [(one, saved(one)), (train, trained(train, 0.05))]
    newer = stored(tmp_path, content, name=NEWER, on=other)
    assert pools.fullest([fuller, newer], "cost").manifest.machine == here().machine
    pool = pools.fullest([fuller, newer], "train")
    assert pool.manifest.machine == "other"
    assert [row.method for row in pool.rows("train")] == ["one"]
    with pytest.raises(ValueError, match="empty"):
        pools.fullest([], "cost")


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, reference: list[ReadRun]) -> None:
    run = next(run for run in reference if "-bench-raw" in run.name)
    for folder in ("a", "b"):
        for drawn in figures.draw([run]):
            figures.save(drawn, tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert [name.rpartition(".")[2] for name in names] == ["png", "svg"] * 3
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_several_processes_draw_what_one_would(tmp_path: Path, reference: list[ReadRun]) -> None:
    runs = [
        run for run in reference if "-bench-raw" in run.name or "-train-ranks-chainer" in run.name
    ]
    alone = [figures.save(drawn, tmp_path / "alone") for drawn in figures.draw(runs)]
    together = list(figures.draw_files(runs, tmp_path / "together"))
    machines = {figure.name.rpartition("-")[2] for figure in alone}
    assert len(machines) == 2
    assert [_words(figure) for figure in together] == [_words(figure) for figure in alone]
    for one, other in zip(alone, together, strict=True):
        assert one.svg.read_bytes() == other.svg.read_bytes()
        assert one.png.read_bytes() == other.png.read_bytes()


def _words(figure: Saved) -> tuple[str, str, str, Sequence[str]]:
    return (figure.name, figure.title, figure.caption, figure.missing)


def test_a_saved_figure_has_no_layout_engine_whatever_the_reader_has_set(tmp_path: Path) -> None:
    """With an engine, matplotlib draws the figure twice for every file."""
    one = item("one")
    drawn = only(figures.draw([stored(tmp_path, [(one, saved(one))])]), "cost")
    assert drawn.figure.get_layout_engine() is not None
    with mpl.rc_context({"figure.constrained_layout.use": True}):
        figures.save(drawn, tmp_path)
    assert drawn.figure.get_layout_engine() is None


def test_the_command_draws_a_run_and_says_what_is_missing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    folder = tmp_path / "out"
    good = item("good")
    wrong = item("wrong")
    failure = records.failure(wrong.case.id, reason="wrong bytes")
    run = stored(results, [(good, saved(good)), (wrong, [failure])])
    with (results / run.name / "records.jsonl").open("a") as file:
        file.write('{"half": ')
    command = ["figures", run.name, "--results", str(results), "--out", str(folder)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "wrong, resnet50 small on cpu: failed in save: wrong bytes." in done.output
    assert "damaged record" in done.output
    assert {path.suffix for path in folder.iterdir()} == {".svg", ".png", ".md"}
    index = (folder / "README.md").read_text()
    listed = re.findall(r"^- \[.*?\]\((.*?)\): .+\.$", index, re.MULTILINE)
    assert sorted(listed) == sorted(svg.name for svg in folder.glob("*.svg"))


def test_the_command_refuses_a_run_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["figures", "nothing", "--results", str(tmp_path)])
    assert done.exit_code != 0
    assert "there are no runs" in str(done.exception)


def test_the_command_refuses_a_run_that_no_figure_shows(tmp_path: Path) -> None:
    resharded = item("one", experiment="reshard", load_world=1)
    run = stored(tmp_path, [(resharded, [])])
    out = tmp_path / "out"
    command = ["figures", run.name, "--results", str(tmp_path), "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert "these runs have no results that any figure shows" in str(done.exception)


def test_the_index_replaces_its_like_and_nothing_that_others_wrote(tmp_path: Path) -> None:
    figure = Saved("cost", "What it costs", "", (), tmp_path / "cost.svg", tmp_path / "cost.png")
    (tmp_path / "README.md").write_text("mine")
    assert figures.write_index([figure], tmp_path) is None
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "README.md").unlink()
    index = figures.write_index([figure], tmp_path)
    assert index is not None
    assert figures.write_index([replace(figure, title="Another")], tmp_path) == index
    assert index.read_text().endswith("- [cost](cost.svg): Another.\n")


def test_every_reference_run_is_listed_with_the_command_that_made_it() -> None:
    text = (REFERENCE / "README.md").read_text()
    lines = re.findall(r"^## (\S+):|^\| `(\S+)` \| `(.+)` \|$", text, re.MULTILINE)
    machine = ""
    listed = {}
    for section, run, command in lines:
        machine = section or machine
        if run:
            listed[f"{machine}/{run}"] = command
    kept = {}
    for folder in folders(REFERENCE):
        command = " ".join(store.Run(folder).header["command"])
        kept[f"{folder.parent.name}/{folder.name}"] = command
    assert listed == kept


def test_notebooks_were_drawn_from_runs_that_are_kept() -> None:
    kept = {match[0] for folder in folders(REFERENCE) if (match := STAMP.match(folder.name))}
    notebooks = list((ROOT / "notebooks").glob("*.ipynb"))
    named = {path.name: set(STAMP.findall(path.read_text(encoding="utf-8"))) for path in notebooks}
    assert {path: stamps - kept for path, stamps in named.items() if stamps - kept} == {}
    assert len([stamps for stamps in named.values() if stamps]) > len(notebooks) // 2
