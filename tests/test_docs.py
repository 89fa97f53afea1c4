"""README.md and docs/: nothing stale, no broken link, no command or option that does not exist."""

from __future__ import annotations

import functools
import json
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from scale_of_reading import write_run

import workloads
from adapters.raw.doubles import NO_FAULT, faults
from harness.analysis.runs import read_run
from harness.docs import figures, pages
from harness.docs.commands import all_commands, options_of
from harness.docs.reference import narrowing, runs
from harness.docs.regions import REGIONS, written
from harness.driver import catalog, names, planning, slurm, suite

ROOT = pages.ROOT
README = ROOT / "README.md"
PAGES = pages.all_pages()
MAKEFILE = (ROOT / "Makefile").read_text()

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
RUN_NAME = re.compile(r"\b20\d{6}-\d{6}-[\w+-]+")
TABLE_RULE = re.compile(r"^\|( --- \|)+$", re.MULTILINE)
# What a reader replaces by a value, such as RUN or KEY=VALUE.
PLACEHOLDER = re.compile(r"^\[?[A-Z_…]+\]?(=.*)?$|…")
OWN_FOLDERS = ("adapters/", "docs/", "harness/", "notebooks/", "results/reference/", "tests/")

MOST_LINES, MOST_WORDS, MOST_ROWS = 150, 1200, 6
MOST_BYTES_A_FIGURE, MOST_BYTES = 150_000, 1 << 20


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", text)


# --- generated regions


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_generated_regions_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert text == pages.renewed(text, written), f"{named(page)} is stale: run make docs"


def test_every_region_is_closed_and_every_kind_of_region_is_used() -> None:
    used = set()
    for page in PAGES:
        text = page.read_text()
        regions = pages.regions(text)
        assert len(regions) == text.count("<!-- generated:") == text.count("<!-- end -->"), page
        used |= {words[0] for words in regions}
    assert used == set(REGIONS)


def test_a_region_is_written_anew_and_the_text_around_it_stays() -> None:
    text = "before\n\n<!-- generated: a b -->\nold\n<!-- end -->\n\nafter\n"
    new = pages.renewed(text, lambda words: "+".join(words))
    assert new == "before\n\n<!-- generated: a b -->\n\na+b\n\n<!-- end -->\n\nafter\n"
    assert pages.renewed(new, lambda words: "+".join(words)) == new


# --- the README


def test_the_readme_is_short() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS


def test_the_readme_has_one_small_table_and_one_figure() -> None:
    text = README.read_text()
    (rule,) = TABLE_RULE.finditer(text)
    rows = text[rule.end() :].split("\n\n")[0].strip().splitlines()
    assert 1 <= len(rows) <= MOST_ROWS
    assert len(IMAGE.findall(text)) == 1


def test_the_readme_leads_to_every_page() -> None:
    linked = {(README.parent / link.split("#")[0]).resolve() for link in links(README.read_text())}
    assert set(PAGES) - {README} <= linked


# --- links


def links(text: str) -> list[str]:
    return LINK.findall(prose(text))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    names = (re.sub(r"[^\w\- ]", "", heading).lower() for heading in HEADING.findall(prose(text)))
    return {name.replace(" ", "-") for name in names}


def broken_links(page: Path, text: str) -> Iterator[str]:
    for link in links(text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link} leads nowhere"
        elif anchor and anchor not in anchors(text if target == page else target.read_text()):
            yield f"{link} names no heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text())) == []


@pytest.mark.parametrize("link", ["nowhere.md", "#nothing", "docs/gate.md#nothing"])
def test_a_broken_link_is_found(link: str) -> None:
    assert len(list(broken_links(README, f"# A heading\n[a](#a-heading) [b]({link})"))) == 1


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_a_page_names_exist(page: Path) -> None:
    spans = CODE_SPAN.findall(prose(page.read_text()))
    paths = [span for span in spans if span.startswith(OWN_FOLDERS)]
    concrete = [path for path in paths if not re.search(r"[*…]|\b(NAME|ENGINE|X|RUN)\b", path)]
    assert [path for path in concrete if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_runs_that_a_page_names_are_kept(page: Path) -> None:
    stored = {run.name for run in runs()}
    assert set(RUN_NAME.findall(page.read_text())) - stored == set()


# --- commands


def commands_in(text: str) -> list[str]:
    """Every command of ckptbench and of make in a page, one a line."""
    blocks = [body for language, body in FENCE.findall(text) if not language]
    lines = [line for body in blocks for line in body.splitlines()]
    candidates = [*lines, *CODE_SPAN.findall(prose(text))]
    return [line for line in candidates if re.search(r"(^|\s)(ckptbench|make) \S|^--\w", line)]


def wrong_in(command: str) -> list[str]:
    """Return the names in a command that do not exist."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        return wrong_in_make(words[1:])
    if words[0].startswith("--"):
        known = {option for each in all_commands().values() for option in options_of(each)}
        return unknown(words, known)
    return wrong_in_ckptbench(words[words.index("ckptbench") + 1 :])


def wrong_in_make(words: list[str]) -> list[str]:
    known = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    known |= set(re.findall(r"^(\w+) \?=", MAKEFILE, re.MULTILINE))
    return [word for word in words if word.split("=")[0] not in known]


def wrong_in_ckptbench(words: list[str]) -> list[str]:
    known = all_commands()
    name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in known), None)
    if name is None:
        return words[:1]
    arguments = words[len(name.split()) :]
    return [*unknown(arguments, options_of(known[name])), *wrong_values(name, arguments)]


def unknown(words: list[str], options: set[str]) -> list[str]:
    named_options = [word.split("=")[0] for word in words if word.startswith("--")]
    return [option for option in named_options if option not in options]


@functools.cache
def declared_names() -> dict[str, set[str]]:
    """Return the names that may follow an option that takes one."""
    frameworks = catalog.frameworks()
    entries = frameworks.values()
    return {
        "--framework": {*frameworks, "all"},
        "--method": {method for entry in entries for method in entry.methods} | {*names.TRAITS},
        "--strategy": {strategy for entry in entries for strategy in entry.strategies}
        | {*names.STRATEGY_TRAITS},
        "--workload": set(workloads.names()),
        "--suite": set(suite.names()),
    }


def wrong_values(name: str, arguments: list[str]) -> list[str]:
    """Names of suites, frameworks, methods, strategies and workloads that nobody has declared."""
    declared = declared_names()
    pairs = zip(arguments, arguments[1:], strict=False)
    given = [(option, value) for option, value in pairs if option in declared]
    if name in ("run", "ab") and arguments and not arguments[0].startswith("-"):
        given.append(("--suite", arguments[0]))
    if "--adapter" in arguments:
        # Its methods and its framework are those of the page, and another test measures them.
        given = [(option, value) for option, value in given if option == "--suite"]
    concrete = [(option, value) for option, value in given if not PLACEHOLDER.search(value)]
    return [value for option, value in concrete if value not in declared[option]]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_options_exist(page: Path) -> None:
    text = page.read_text()
    wrong = {command: wrong_in(command) for command in commands_in(text)}
    assert {command: words for command, words in wrong.items() if words} == {}


def test_the_pages_name_many_commands() -> None:
    assert len({command for page in PAGES for command in commands_in(page.read_text())}) > 50


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("ckptbench measure bench", ["measure"]),
        ("ckptbench run bench --frameworks pytorch", ["--frameworks"]),
        ("ckptbench run bench --framework pytroch", ["pytroch"]),
        ("ckptbench run benhc", ["benhc"]),
        ("srun -N1 ckptbench run bench --node 2", ["--node"]),
        ("ckptbench env make pytorch", ["env"]),
        ("make bench FRAMEWROK=pytorch", ["FRAMEWROK=pytorch"]),
        ("make everything", ["everything"]),
        ("--worlds 1,2", ["--worlds"]),
        ("ckptbench run SUITE --framework NAME --world 1,2   # --nothing", []),
    ],
)
def test_a_wrong_command_is_found(command: str, wrong: list[str]) -> None:
    assert commands_in(f"```\n{command}\n```") == [command]
    assert wrong_in(command) == wrong


# --- examples


def toml_in(page: str, holding: str = "") -> str:
    """The one block of TOML with a text in it that a page writes by hand."""
    text = (pages.DOCS / page).read_text()
    by_hand = re.sub(r"<!-- generated:.*?<!-- end -->", "", text, flags=re.DOTALL)
    blocks = [body for language, body in FENCE.findall(by_hand) if language == "toml"]
    (block,) = (body for body in blocks if holding in body)
    return str(block)


def test_the_suite_of_the_pages_is_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(toml_in("extending.md", "[[sweep]]"))
    declared = suite.load("mine", tmp_path)
    assert planning.plan(declared, [catalog.frameworks()["pytorch"]])


def test_the_site_file_of_the_pages_is_one(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(toml_in("cluster.md"))
    assert slurm.read_site(file).account == "lab17"


# --- figures and runs


def test_figures_are_small_and_shown() -> None:
    sizes = {file.name: file.stat().st_size for file in figures.FOLDER.iterdir()}
    assert set(sizes) == {f"{name}.png" for name in figures.names()}
    assert max(sizes.values()) < MOST_BYTES_A_FIGURE
    assert sum(sizes.values()) < MOST_BYTES
    shown = {Path(link).name for page in PAGES for link in IMAGE.findall(page.read_text())}
    assert shown == set(sizes)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_of_the_newest_runs(name: str) -> None:
    described = figures.described(figures.FOLDER / f"{name}.png")
    newest = {run.name for run in figures.runs_of(name)}
    assert set(RUN_NAME.findall(described["Description"])) == newest


def test_the_protocol_names_every_guard_and_every_double() -> None:
    guards = [module.name for module in pkgutil.iter_modules([str(ROOT / "harness/worker/guards")])]
    wanted = {name.replace("_", "-") for name in guards} | set(faults()) - {NO_FAULT}
    page = (ROOT / "docs" / "protocol.md").read_text()
    assert sorted(name for name in wanted if f"`{name}`" not in page) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", figures.names())
def test_a_figure_says_what_it_would_say_if_it_were_drawn_now(name: str) -> None:
    file = figures.FOLDER / f"{name}.png"
    assert figures.described(file) == figures.text_of(figures.drawn(name))


MEASURED_AGAIN = frozenset({"20261127-220053-goodput-chainer", "20261123-104042-bench-pytorch"})
"""Older runs that a page needs: first predictions, and a run that is compared with another one."""


def test_one_run_of_each_machine_suite_framework_and_part_of_a_suite_is_kept() -> None:
    answers: dict[tuple[object, ...], list[str]] = {}
    for run in runs():
        if run.name in MEASURED_AGAIN:
            continue
        frameworks = tuple(sorted({row.framework for row in run.rows}))
        machine = run.stored.folder.parent.name
        question = (machine, run.stored.header["suite"], frameworks, narrowing(run))
        answers.setdefault(question, []).append(run.name)
    assert [names for names in answers.values() if len(names) > 1] == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--states", "40"], ("--states", "40")),
        (["--states=40", "--guards"], ("--states", "40")),
        (["--option=threads=4"], ("--option", "threads=4")),
        (["--method", "npz"], ("--method", "npz")),
    ],
)
def test_a_run_of_a_part_of_its_suite_is_narrowed(
    tmp_path: Path, words: list[str], option: tuple[str, str]
) -> None:
    run = write_run(tmp_path, samples=1)
    header = json.loads((run / "plan.json").read_text())
    header["command"] = ["ckptbench", "run", "bench", *words]
    (run / "plan.json").write_text(json.dumps(header))
    assert narrowing(read_run(run)) == (option,)
    header["command"] = ["ckptbench", "run", "bench", "--framework=raw", "--timeout", "60"]
    (run / "plan.json").write_text(json.dumps(header))
    assert narrowing(read_run(run)) == ()
