"""The HTML page: what is on it is what is in the JSON, in a real browser, by light and by dark."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from simulated_traces import simulated_trace
from test_bench_fastest import bench as benched
from test_bench_fastest import pair, plan
from test_trace_time import REGIME, Cycle
from trace_makers import a_round, bench_trace, request, run_record, slot, small_trace, written

from mtpx.errors import TraceError
from mtpx.policy.ollama import OllamaDepth
from mtpx.trace.page import check_writable, page, write_page
from mtpx.trace.schema import BeliefRecord, EndRecord, Record
from mtpx.trace.summary import FileSummary, Summary, summarise, summarise_files
from mtpx.trace.svg import ticks, whole_ticks
from mtpx_cli.trace import trace

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
DRIVER = shutil.which("chromedriver")


def page_of(records: list[Record]) -> str:
    return page(Summary([FileSummary("t.jsonl", len(records), [], summarise(records))]))


def everything() -> list[Record]:
    """A trace with something for every part of the page."""
    bench = bench_trace()
    bench[0] = run_record(plain_step_bytes=10**8)
    for i, record in enumerate(bench):
        if isinstance(record, EndRecord) and i % 3:
            record.sha256 = "other"
    believed = [
        run_record(),
        request(0),
        *(
            record
            for i in range(4)
            for record in (
                a_round(i, slot(2, i % 3, confidences=[-0.1 - i, -0.7])),
                BeliefRecord(i, "any", {"selected": 1, "tokens_per_s": {"0": 30.0, "1": 40.0 + i}}),
            )
        ),
    ]
    _, beside = benched(pair(), plan())
    torn = [run_record(), request(0, session=1, reused_tokens=3), a_round(0, slot(1, 1))]
    return [
        *bench,
        *simulated_trace(REGIME, OllamaDepth(), tokens=800, requests=2),
        *small_trace(),
        *believed,
        *beside,
        *torn,
    ]


def test_a_page_is_one_file_without_scripts_and_without_the_network() -> None:
    text = page_of(everything())
    assert text.count("<script") == 1
    assert '<script type="application/json"' in text
    for word in ("http:", "https:", "src=", "@import", "url("):
        assert word not in text


def test_the_verdict_is_the_first_heading() -> None:
    text = page_of(bench_trace())
    assert text[text.index("<h1>") :].startswith("<h1>MTP pays <small>depth-1</small></h1>")


def test_what_is_absent_is_a_dash_with_its_reason() -> None:
    text = page_of([run_record(), request(0), a_round(0, slot(1, 1))])
    assert '<span class="absent">–<a href="#' in text
    assert "the time to the first token was not recorded</li>" in text


def test_what_the_policy_believed_is_a_line_a_depth() -> None:
    beliefs: list[Record] = []
    for i in range(3):
        beliefs.append(a_round(i, slot(1, 1)))
        beliefs.append(BeliefRecord(i, "any", {"tokens_per_s": {"0": 30.0, "2": 40.0 + i}}))
    picture = page_of([run_record(), request(0), *beliefs]).partition("What the policy believed")[2]
    picture = picture[: picture.index("</svg>")]
    assert picture.count("<path") == 2
    assert "depth 0" in picture
    assert "depth 2" in picture


def test_names_from_a_trace_are_text_and_never_markup() -> None:
    records = bench_trace()
    records[0] = run_record(pack="</script><script>alert(1)</script>", device="<b>&'\"")
    text = page_of(records)
    assert "<script>alert" not in text
    assert "<b>&" not in text


def test_ten_thousand_rounds_stay_under_three_megabytes() -> None:
    assert len(page_of(simulated_trace(REGIME, Cycle(3), tokens=21_000, requests=4))) < 3e6


def test_a_page_nobody_can_write_is_a_sentence(tmp_path: Path) -> None:
    summary = summarise_files([str(written(tmp_path / "t.jsonl", small_trace()))])
    for bad in (tmp_path, tmp_path / "none" / "x.html"):
        with pytest.raises(TraceError, match="the page cannot be written to"):
            write_page(bad, summary)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_page_where_nothing_may_be_written_is_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TraceError, match="permission denied"):
        check_writable(tmp_path / "x.html")


def test_the_report_command_writes_the_page_and_says_where(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", bench_trace())
    result = CliRunner().invoke(trace, ["report", str(path), "--html", str(tmp_path / "o.html")])
    assert result.exception is None
    assert result.output.rstrip().endswith(f"Page: {tmp_path / 'o.html'}")
    assert (tmp_path / "o.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-6, 1e6))
def test_ticks_are_few_and_hold_what_they_are_for(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert found[0] <= low + 1e-6 * span
    assert found[-1] >= low + span - 1e-6 * span
    assert 2 <= len(found) <= 12


@given(low=st.integers(0, 5), span=st.integers(0, 1000))
def test_whole_ticks_are_whole_and_few(low: int, span: int) -> None:
    found = whole_ticks(low, low + span)
    assert found[0] == low
    assert found[-1] >= low + span
    assert 2 <= len(found) <= 9


# -- in a browser --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver here (Debian: chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1000,900",
    ):
        options.add_argument(argument)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def shown(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The browser, on the page of a trace with everything in it."""
    path = tmp_path_factory.mktemp("page") / "t.html"
    path.write_text(page_of(everything()), encoding="utf-8")
    browser.get(path.as_uri())
    return browser


def at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def test_the_browser_has_nothing_to_complain_of(shown: Any) -> None:
    assert shown.get_log("browser") == []


def test_every_number_on_the_page_is_the_one_in_the_json(shown: Any) -> None:
    data = json.loads(shown.execute_script("return document.getElementById('summary').textContent"))
    cells = shown.execute_script(
        "return [...document.querySelectorAll('[data-at]')].map(e => "
        "[e.dataset.at, e.getAttribute('value') ?? e.dataset.value, "
        "e.tagName == 'DATA' ? e.textContent : null])"
    )
    assert len(cells) > 300
    for pointer, value, text in cells:
        wanted = at(data, pointer)
        assert float(value) == wanted, pointer
        if text is not None:
            assert reads_as(text, wanted), f"{pointer}: {text!r} for {wanted!r}"


def reads_as(text: str, value: float) -> bool:
    """Whether a printed number is this one, to half of its last digit."""
    scale = 100.0 if "%" in text or "pts" in text else 1.0
    digits = text.replace("%", "").replace("pts", "").replace(" ", "")
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    return math.isclose(float(digits), scale * value, abs_tol=0.501 * 10.0**-decimals)


def test_the_embedded_json_is_the_reports_json(shown: Any) -> None:
    data = shown.execute_script("return document.getElementById('summary').textContent")
    records = everything()
    wanted = Summary([FileSummary("t.jsonl", len(records), [], summarise(records))])
    found = json.loads(data)["files"][0]["runs"][0]["verdicts"]
    assert found == msgspec.to_builtins(wanted)["files"][0]["runs"][0]["verdicts"]


@pytest.mark.parametrize("width", [320, 390, 800, 1400])
def test_nothing_on_the_page_is_wider_than_the_window(shown: Any, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    shown.execute_script("document.querySelectorAll('details').forEach(e => e.open = true)")
    wide, room = shown.execute_script(
        "const e = document.documentElement; return [e.scrollWidth, e.clientWidth]"
    )
    shown.execute_script("document.querySelectorAll('details').forEach(e => e.open = false)")
    shown.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= room


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_paper(shown: Any, scheme: str) -> None:
    shown.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    pairs = shown.execute_script(
        "const bg = e => { while (e) { const c = getComputedStyle(e).backgroundColor;"
        " if (!c.endsWith(', 0)')) return c; e = e.parentElement } return 'rgb(255, 255, 255)' };"
        "return [...document.querySelectorAll('p, h1, h2, td, th, dt, dd, figcaption, a, li')]"
        ".map(e => [getComputedStyle(e).color, bg(e)])"
    )
    # WCAG 2.2, contrast (minimum): 4.5 to 1.
    assert min(contrast(*pair) for pair in {tuple(pair) for pair in pairs}) >= 4.5


def contrast(one: str, other: str) -> float:
    a, b = sorted((luminance(one), luminance(other)))
    return (b + 0.05) / (a + 0.05)


def luminance(colour: str) -> float:
    """WCAG's relative luminance of "rgb(r, g, b)"."""
    channels = [float(c) / 255 for c in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_keyboard_reaches_the_report_and_opens_its_details(shown: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    shown.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    body = shown.find_element("tag name", "body")
    body.send_keys(Keys.TAB)
    assert shown.switch_to.active_element.get_attribute("class") == "skip"
    summary = shown.find_element("css selector", "details > summary")
    shown.execute_script("arguments[0].focus()", summary)
    summary.send_keys(Keys.ENTER)
    assert shown.execute_script("return arguments[0].parentElement.open", summary)


def test_the_page_prints(shown: Any) -> None:
    printed = shown.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert len(printed["data"]) > 10_000
