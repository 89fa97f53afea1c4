"""In a real Chromium, the report loads alone, sorts, filters, fits screens and prints."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pypdf import PdfReader
from references import references
from reported import HOSTILE, SPEEDS_S, hostile_run

from harness.analysis import figures
from harness.analysis.report.page import Machine, Picture, page
from harness.analysis.runs import read_run

CHROMIUM = shutil.which("chromium")
WIDTHS = (360, 1440)
LAPTOP_PIXELS = 1280
TEXT_CONTRAST = 4.5  # WCAG 2.2, level AA
LANDSCAPE_PIXELS = 1062  # A4 on its side between margins of 8 mm
FIGURE_POINTS = 8.0  # the words of a figure as it is drawn
LEAST_POINTS = 4.5  # what the largest figures have on a sheet of A4
SVG = (
    b'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    b'width="800" height="400">'
    b'<defs><path id="m" d="M0 0L9 9" stroke="black"/></defs><use xlink:href="#m"/></svg>'
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium refuses root its sandbox
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    pictures = [
        Picture(title, "What it shows.", ("one: not measured",), SVG)
        for title in ("One", "Another")
    ]
    return written(folder, Machine([read_run(hostile_run(folder))], pictures))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All reference runs, with the figures that are widest and highest, and those of training."""
    folder = tmp_path_factory.mktemp("reference")
    runs = references()
    drawn = [
        it
        for it in figures.draw(runs)
        if it.name.startswith(("training-", "cost-resnet50", "determinism-resnet50"))
    ]
    pictures = [
        Picture(it.title, it.caption, it.missing, figures.save(it, folder).svg.read_bytes())
        for it in drawn
    ]
    return written(folder, Machine(runs, pictures))


def written(folder: Path, machine: Machine) -> Path:
    file = folder / "report.html"
    file.write_text(page([machine]))
    return file


@dataclass
class Opened:
    """A page, and what it complained about or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)


def open_page(browser: Browser, file: Path, width: int = 1440, **options: object) -> Opened:
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    opened = Opened(context.new_page())
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("requestfailed", lambda request: opened.complaints.append(request.url))
    address = file.as_uri()
    opened.page.on(
        "request",
        lambda request: (
            request.url.startswith((address, "data:")) or opened.complaints.append(request.url)
        ),
    )
    opened.page.goto(address)
    return opened


def shown_methods(page: Page) -> list[str]:
    rows = page.locator("table.results").first.locator("tbody tr:visible:not(.group)")
    return rows.locator("th").all_inner_texts()


def sort_by(page: Page, name: str) -> str | None:
    head = page.locator("table.results").first.get_by_role("columnheader", name=name, exact=True)
    head.get_by_role("button").click()
    return head.get_attribute("aria-sort")


@pytest.mark.parametrize("which", ["hostile", "reference"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("javascript", [True, False])
def test_it_loads_without_errors_and_nothing_overflows(
    browser: Browser, which: str, width: int, javascript: bool, request: pytest.FixtureRequest
) -> None:
    opened = open_page(
        browser, request.getfixturevalue(which), width, java_script_enabled=javascript
    )
    opened.page.wait_for_load_state("networkidle")
    for details in opened.page.locator("details").all():
        details.evaluate("element => { element.open = true }")
    assert opened.complaints == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    outside = """width => Array.from(document.querySelectorAll("body *"))
        .filter((element) => !element.closest(".scroll"))
        .filter((element) => element.getBoundingClientRect().right > width + 0.5)
        .map((element) => element.outerHTML.slice(0, 80))"""
    assert opened.page.evaluate(outside, width) == []
    broken = (
        "Array.from(document.images)"
        ".filter((image) => !image.complete || image.naturalWidth === 0).length"
    )
    assert opened.page.evaluate(broken) == 0


SHOWN = (
    "Array.from(document.images, "
    "(it) => [it.alt, it.getBoundingClientRect().width, it.naturalWidth])"
)
# CSS pixels across, as drawn
LARGEST = {"What a checkpoint costs": 900, "Does a killed run continue": 1300}


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_are_as_large_as_they_were_drawn_and_scroll(
    browser: Browser, reference: Path, width: int
) -> None:
    page = open_page(browser, reference, width).page
    shown = page.evaluate(SHOWN)
    assert [alt for alt, across, natural in shown if abs(across - natural) > 1] == []
    for title, least in LARGEST.items():
        assert [across for alt, across, _ in shown if alt.startswith(title) and across >= least], (
            title
        )
    cut = """Array.from(document.querySelectorAll("figure .scroll"))
        .filter((box) => box.scrollWidth + 1 < box.querySelector("img").naturalWidth).length"""
    assert page.evaluate(cut) == 0


@pytest.mark.parametrize("suite", ["bench", "scaling"])
def test_all_columns_of_a_stored_run_are_in_view_on_a_laptop(
    browser: Browser, suite: str, tmp_path: Path
) -> None:
    runs = references(f"-{suite}-")
    assert runs
    for run in runs:
        page = open_page(browser, written(tmp_path, Machine([run])), LAPTOP_PIXELS).page
        table = page.locator("table.results").first
        headings = table.get_by_role("columnheader")
        assert {"power-safe", "verified"} <= set(headings.all_inner_texts())
        for heading in headings.all():
            box = heading.bounding_box()
            assert box is not None, run.name
            assert box["x"] + box["width"] <= LAPTOP_PIXELS, run.name
        page.context.close()


def test_markup_from_a_record_stays_text(browser: Browser, hostile: Path) -> None:
    opened = open_page(browser, hostile)
    assert opened.page.evaluate("window.harmed") is None
    assert opened.page.locator("pre").inner_text() == f"{HOSTILE} red \ufffd"
    assert f"evil{HOSTILE}" in shown_methods(opened.page)
    assert opened.page.locator("body img").count() == 2, "the figures are the only images"
    assert opened.page.locator("script").count() == 1


def test_a_foreign_script_would_not_run(browser: Browser, hostile: Path, tmp_path: Path) -> None:
    injected = tmp_path / "injected.html"
    injected.write_text(
        hostile.read_text().replace("</main>", "<script>window.harmed = true</script></main>")
    )
    opened = open_page(browser, injected)
    assert opened.page.evaluate("window.harmed") is None
    assert any("Content Security Policy" in text for text in opened.complaints)


def test_numbers_are_sorted_by_value_within_their_group(browser: Browser, hostile: Path) -> None:
    page = open_page(browser, hostile).page
    page.get_by_label("state").select_option("resnet50 small on cpu")
    failed = f"evil{HOSTILE}"
    rising = sorted(SPEEDS_S, key=lambda name: SPEEDS_S[name])
    assert sort_by(page, "durable") == "ascending"
    assert shown_methods(page) == [failed, *rising]
    assert sort_by(page, "durable") == "descending"
    assert shown_methods(page) == [failed, *reversed(rising)]
    assert sort_by(page, "method") == "ascending"
    assert shown_methods(page) == [failed, *sorted(SPEEDS_S)]
    assert page.locator("[aria-sort]").count() == 1


def test_a_heading_sorts_by_keyboard(browser: Browser, hostile: Path) -> None:
    page = open_page(browser, hostile).page
    page.get_by_label("framework").select_option("raw")
    page.get_by_label("state").select_option("resnet50 small on cpu")
    page.get_by_role("columnheader", name="durable").get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert shown_methods(page)[0] == "npz-raw"


def test_search_and_choices_filter_together_and_are_taken_back(
    browser: Browser, hostile: Path
) -> None:
    page = open_page(browser, hostile).page
    assert page.locator("output").inner_text() == "6 of 6 rows"
    page.get_by_role("searchbox").fill("BUFF candle")
    assert shown_methods(page) == ["buffered"]
    assert page.locator("output").inner_text() == "1 of 6 rows"
    page.get_by_label("framework").select_option("jax")
    assert shown_methods(page) == []
    page.get_by_role("searchbox").fill("")
    assert shown_methods(page) == [f"evil{HOSTILE}"]
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("output")).to_have_text(re.compile("^6"))
    page.get_by_label("verdict").select_option("failed")
    assert shown_methods(page) == [f"evil{HOSTILE}"]


def test_a_row_leads_to_its_command_and_back_though_a_filter_hides_it(
    browser: Browser, hostile: Path
) -> None:
    page = open_page(browser, hostile).page
    page.get_by_role("rowheader", name="npz-raw").get_by_role("link").click()
    again = page.locator(".commands div:target")
    assert again.locator("code").is_visible()
    assert "--method npz-raw" in again.locator("code").inner_text()
    page.get_by_role("searchbox").fill("direct")
    again.get_by_role("link").click()
    expect(page.locator("tr:target")).to_be_visible()


def test_without_javascript_it_is_a_plain_table(browser: Browser, hostile: Path) -> None:
    page = open_page(browser, hostile, java_script_enabled=False).page
    assert len(shown_methods(page)) == 6
    assert page.locator("form:visible").count() == 0
    assert page.locator("thead button").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Browser, hostile: Path, scheme: str) -> None:
    page = open_page(browser, hostile, color_scheme=scheme).page
    colours = page.evaluate(
        """() => { const style = getComputedStyle(document.documentElement);
        return Object.fromEntries(["paper", "panel", "ink", "quiet", "accent", "good", "bad"]
            .map((name) => [name, style.getPropertyValue(`--${name}`).trim()])); }"""
    )
    texts = ("ink", "quiet", "accent", "good", "bad")
    pairs = [(text, ground) for ground in ("paper", "panel") for text in texts]
    assert [
        pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < TEXT_CONTRAST
    ] == []


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, (L1 + 0.05) / (L2 + 0.05), as WCAG defines it."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    ]
    return sum(
        weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def test_print_has_every_row_and_every_command(
    browser: Browser, hostile: Path, tmp_path: Path
) -> None:
    page = open_page(browser, hostile, color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    hidden = """() => Array.from(
        document.querySelectorAll("tbody tr, .commands code, .meanings dd")
    ).filter(
        (element) => !element.checkVisibility() || element.getBoundingClientRect().height === 0
    ).length"""
    assert page.evaluate(hidden) == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    boxes = (
        "Array.from(document.querySelectorAll('.scroll'), (box) => getComputedStyle(box).overflowX)"
    )
    assert set(page.evaluate(boxes)) == {"visible"}
    pages = printed(page, tmp_path / "report.pdf")
    assert len(pages) >= 2
    assert all(method in "".join(pages) for method in SPEEDS_S)


def test_words_in_printed_figures_can_be_read(
    browser: Browser, reference: Path, tmp_path: Path
) -> None:
    page = open_page(browser, reference, LANDSCAPE_PIXELS).page
    page.emulate_media(media="print")
    shown = page.evaluate(SHOWN)
    for title in LARGEST:
        points = [
            FIGURE_POINTS * across / natural
            for alt, across, natural in shown
            if alt.startswith(title)
        ]
        assert min(points) >= LEAST_POINTS, title
    page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    sheets = PdfReader(tmp_path / "report.pdf").pages
    assert {float(sheet.mediabox.width) > float(sheet.mediabox.height) for sheet in sheets} == {
        True,
        False,
    }


def test_every_printed_page_of_a_table_has_its_headings(
    browser: Browser, reference: Path, tmp_path: Path
) -> None:
    pages = printed(open_page(browser, reference).page, tmp_path / "report.pdf")
    interval = re.compile(r"\[\d\.\d\d–")
    with_rows = [text for text in pages if len(interval.findall(text)) >= 5]
    assert len(with_rows) >= 2
    # Other text may stand above a table. A heading may be broken into several lines.
    above_rows = [interval.split(text, maxsplit=1)[0] for text in with_rows]
    beginnings = [" ".join(text.split()) for text in above_rows]
    assert [text for text in beginnings if "share of ceiling" not in text] == []


def printed(page: Page, file: Path) -> list[str]:
    """The text of every page on paper."""
    page.pdf(path=file, prefer_css_page_size=True)
    return [sheet.extract_text() for sheet in PdfReader(file).pages]
