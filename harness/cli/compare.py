"""The commands `compare` and `regress`: two runs, two arms, or a run and its baseline."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.analysis import comparison, comparison_output, precision
from harness.analysis.comparison import Comparison
from harness.analysis.runs import ReadRun, read_run
from harness.cli import measuring
from harness.cli.app import (
    RESULTS,
    AdapterOption,
    DirOption,
    PythonOption,
    ReaderGone,
    ResultsOption,
    app,
    environments_of,
    err,
    out,
    put,
    scratch_directory,
    warn_of_damages,
)
from harness.cli.printing import print_table
from harness.driver import catalog, judge, machine, planning, slurm, suite
from harness.driver.paths import at_home
from harness.run import store
from harness.run.errors import IncomparableError, UsageError, nearest
from harness.run.manifest import Manifest, differences
from harness.run.plan import PlannedCase, Selection
from harness.run.stored import folders, run_argument
from harness.wire.records import CalibrationRecord

BASELINES = "baseline"
_WRITERS = {
    "markdown": ("comparison.md", comparison_output.to_markdown),
    "junit": ("comparison.xml", comparison_output.to_junit),
    "json": ("comparison.json", comparison_output.to_json),
}
FORMATS = ("table", *_WRITERS)
_COLOURS = {
    "slower": "red",
    "worse": "red",
    "faster": "green",
    "better": "green",
    "inconclusive": "yellow",
}

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        parser=at_home,
        help="Write comparison.md, comparison.xml (JUnit) and comparison.json there.",
    ),
]
FormatOption = Annotated[str, typer.Option("--format", help=", ".join(FORMATS))]


@app.command("compare")
def compare_command(
    base: Annotated[str, typer.Argument(help="A run; without HEAD one that has two arms.")],
    head: Annotated[str | None, typer.Argument()] = None,
    form: FormatOption = "table",
    folder: OutOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Say what got slower, or worse, from one run to another of the same machine.

    Exit 1 where anything did. Exit 3 where the two runs cannot be compared, or where nothing got
    worse, but of the saves and loads that both runs have, no time could be compared.
    """
    require_output(form, folder)
    found = compared(*(_opened(results, name) for name in (base, head) if name is not None))
    present(found, form, folder)
    raise typer.Exit(int(found.regressed) or _status_of_doubt(found))


@app.command("regress")
def regress_command(
    framework: Annotated[
        list[str], typer.Option(help="A framework, or 'all'; may be given several times.")
    ],
    suite_name: Annotated[str, typer.Option("--suite", help="The suite to measure.")] = "gate",
    form: FormatOption = "table",
    folder: OutOption = None,
    directory: DirOption = None,
    python: PythonOption = None,
    adapter: AdapterOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Compare the gate suite with this machine's baseline, which the first run becomes.

    Exit 1 where anything is slower or worse. Exit 3 where nothing is worse, but of the
    saves and loads that both sides have, no time could be compared.
    """
    require_output(form, folder)
    slurm.require_a_node()
    known = catalog.frameworks()
    frameworks = measuring.chosen_frameworks(framework, known)
    scratch = scratch_directory(directory)
    here = machine.capture(scratch)
    place = results / BASELINES / here.machine / f"{suite_name}-{'+'.join(sorted(frameworks))}"
    baseline = _baseline(place, here)
    plan = planning.plan(suite.load(suite_name), catalog.select(known, frameworks))
    if baseline is not None:
        _require_common_rows(baseline, plan, suite_name, place)
    environments = environments_of(python)
    sides = {"": measuring.only_arm(environments)}
    measuring.refuse_what_does_not_fit(plan, scratch)
    measuring.make_environments(sides, plan)
    measuring.require_mpirun(plan, sides)
    selection = Selection.of(frameworks)
    run = measuring.new_run(
        plan,
        suite_name,
        results if baseline else place,
        selection,
        directory,
        environments.named(),
    )
    if baseline is not None:
        _take_calibrations(run, baseline)
    measuring.measure_here(run, sides, scratch)
    head = read_run(run)
    failed = measuring.exit_code(run, head.rows)
    if baseline is None:
        # Nothing is compared yet, and the output in another form is for programs.
        _settle_first(run, place, results, failed, out if form == "table" else err)
        raise typer.Exit(failed)
    end(compared(baseline, head), form, folder, failed)


def compared(base: ReadRun, head: ReadRun | None = None) -> Comparison:
    """Compare two runs, or the arms of one.

    Raises IncomparableError with the reason where they are unlike.
    """
    try:
        found = comparison.of_arms(base) if head is None else comparison.of_runs(base, head)
    except comparison.Unlike as error:
        raise IncomparableError(str(error)) from error
    if head is None:
        reached = precision.notes(base)
    else:
        reached = [f"{run.name}: {note}" for run in (base, head) for note in precision.notes(run)]
    return replace(found, remarks=(*found.remarks, *reached))


def require_output(form: str, folder: Path | None) -> None:
    """Refuse an unknown format, or a folder that cannot be made, before anything is measured."""
    if form not in FORMATS:
        raise nearest("format", form, FORMATS)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {folder}: {error.strerror}") from error


def present(found: Comparison, form: str, folder: Path | None) -> None:
    """Print a comparison, and write it to files where a folder is named."""
    if folder is not None:
        for name, write in _WRITERS.values():
            (folder / name).write_text(write(found), encoding="utf-8")
    # A regression is one, whoever has read enough of it.
    with contextlib.suppress(ReaderGone):
        if form == "table":
            print_comparison(found)
        else:
            put(_WRITERS[form][1](found))


def end(found: Comparison, form: str, folder: Path | None, failed: int) -> NoReturn:
    """Present the comparison of what was measured, and end the command.

    `failed` is the exit status that the measurement alone would have.
    """
    present(found, form, folder)
    raise typer.Exit(int(found.regressed or failed) or _status_of_doubt(found))


def _status_of_doubt(found: Comparison) -> int:
    """Return the exit status of a comparison that found nothing worse."""
    return IncomparableError.exit_status if found.is_hollow else 0


def print_comparison(found: Comparison) -> None:
    """Print the tables of a comparison, and what they mean."""
    for title, rows in comparison_output.by_group(found).items():
        shown = Table(
            title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for column in comparison_output.COLUMNS:
            shown.add_column(column, overflow="fold")
        for line in (line for row in rows for line in comparison_output.lines(row)):
            *cells, verdict = line
            shown.add_row(*map(escape, cells), f"[{_COLOURS.get(verdict, 'default')}]{verdict}[/]")
        print_table(out, shown)
    for text in (
        *found.remarks,
        comparison_output.headline(found),
        comparison_output.method(found),
    ):
        out.print(escape(text), highlight=False)


def _settle_first(
    run: store.Run, place: Path, results: Path, failed: int, console: Console
) -> None:
    """Make a first run the baseline, or store it beside the other runs if a row of it failed."""
    if failed:
        run.close()
        folder = run.folder.rename(results / run.name)
        text = (
            f"{run.name} did not become the baseline, because one of its rows failed: "
            f"see ckptbench show {run_argument(folder)}"
        )
    else:
        text = (
            f"{run.name} is the baseline now; remove {shlex.quote(str(place))} to have another one"
        )
    console.print(escape(text), highlight=False, soft_wrap=True)


def _opened(results: Path, name: str) -> ReadRun:
    run = store.Run(store.find(results, name))
    if not run.begun:
        raise UsageError(f"run {run.name} has measured nothing yet")
    warn_of_damages(run)
    return read_run(run)


def _baseline(place: Path, here: Manifest) -> ReadRun | None:
    """Return the latest run of a folder, or None. Refuse one that no run here compares with."""
    stored = folders(place)
    if not stored:
        return None
    baseline = read_run(stored[-1])
    _require_sound(baseline)
    _require_alike(baseline, here, place)
    _require_settled(baseline, place)
    return baseline


def _take_calibrations(run: store.Run, baseline: ReadRun) -> None:
    """Let a run take its ceilings with the requests of its baseline.

    A new search may choose other ones.
    """
    for calibration in baseline.records.all(CalibrationRecord):
        run.append(calibration)


def _require_common_rows(
    baseline: ReadRun, plan: Sequence[PlannedCase], suite_name: str, place: Path
) -> None:
    """Refuse a baseline of which the suite measures no row any more."""
    if not comparison.have_common_rows(baseline.stored.plan, plan):
        raise IncomparableError(
            f"the baseline {baseline.name} has no row in common with today's suite {suite_name}; "
            f"remove {shlex.quote(str(place))} to have a new one"
        )


def _require_alike(baseline: ReadRun, here: Manifest, place: Path) -> None:
    """Refuse to measure what could not be compared afterwards."""
    unlike = differences(baseline.stored.manifest, here)
    if unlike:
        raise IncomparableError(
            f"this machine has changed since the baseline {baseline.name} "
            f"({', '.join(unlike)}): remove {shlex.quote(str(place))} to have a new one"
        )


def _require_settled(baseline: ReadRun, place: Path) -> None:
    """Refuse a baseline whose ceilings an older version took in another way."""
    if not comparison.has_settled_ceilings(baseline):
        raise IncomparableError(
            f"the baseline {baseline.name} was measured by an older version, "
            "which took its ceilings in another way: "
            f"remove {shlex.quote(str(place))} to have a new one"
        )


def _require_sound(baseline: ReadRun) -> None:
    """Refuse a baseline that is unfinished, or that has a failed row.

    Such a row would never be compared.
    """
    place = shlex.quote(str(baseline.stored.folder))
    if not comparison.is_finished(baseline):
        raise IncomparableError(
            f"the baseline was interrupted; go on with: ckptbench run --resume {place}, or remove "
            "that to have another one"
        )
    if judge.exit_code(baseline.stored.plan, baseline.rows):
        raise IncomparableError(
            f"a row of the baseline {baseline.name} failed: remove {place} to have a new one"
        )
