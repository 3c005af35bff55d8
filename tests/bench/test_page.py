"""The page of a report in a real browser: it renders, its switches work, it loads nothing from
outside, and names with markup stay text."""

import json
import re
import warnings
from pathlib import Path

import pytest

from ace.bench.page import embedded, page
from ace.bench.results import add_program
from ace.bench.scores import read
from ace.bench.summary import summarise
from tests.bench.browser import Browser, find
from tests.bench.made import EVIL, STEPS, make_row, make_suite

MIDDLE = """(() => {
  const node = document.querySelector(%s);
  node.scrollIntoView({block: "center", behavior: "instant"});
  const box = node.getBoundingClientRect();
  return [box.x + box.width * 0.6, box.y + box.height * 0.5];
})()"""


def place(browser: Browser, selector: str) -> tuple[float, float]:
    """Bring an element into view; a point inside it."""
    x, y = browser.run(MIDDLE % json.dumps(selector))
    return x, y


def test_embedded_json_cannot_end_its_script() -> None:
    text = embedded({"a": "</script><!--&\u2028", "b": float("nan"), "c": 1 / 3})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028", "b": None, "c": 0.33333}


def test_placeholders_in_names_stay_text() -> None:
    made = page({"name": "{{script}}"}, "{{css}} <b>")
    assert made.count('"use strict"') == 2
    assert "<title>{{css}} &lt;b&gt;</title>" in made
    assert not re.search(r"(src|href)=\"(?!#|data:,)", made)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page")
    suite = make_suite(out / "results" / "<i>suite", tasks=("dmc/hopper-hop", f"dmc/{EVIL}"))
    # Agent `three` has two columns of small numbers, and one task alone.
    numbers = ({"bias": -0.002 * n, EVIL: float(n)} for n in (1, 2, 3))
    rows = {0: {s: make_row(40.0, **more) for s, more in zip(STEPS, numbers, strict=True)}}
    add_program(suite, {"id": "p-three", "lanes": []}, {("three", "dmc/hopper-hop"): rows})
    entries, notes = read([suite])
    data = summarise(entries, [*notes, EVIL], columns=("bias", EVIL), samples=100)
    path = out / "index.html"
    path.write_text(page(data, f"On {EVIL}"))
    return path


@pytest.fixture(scope="module")
def browser(report: Path):
    if (program := find()) is None:
        reason = "no Chromium here (apt-get install chromium): the page was not tested in a browser"
        warnings.warn(reason, stacklevel=1)  # shown at the end, where `-q` hides skip reasons
        pytest.skip(reason)
    with Browser(program) as browser:
        browser.open(report.resolve().as_uri())
        yield browser


def test_page_in_a_browser(browser: Browser, report: Path, tmp_path: Path) -> None:
    assert browser.run("document.documentElement.dataset.rendered") == "1"
    lines = "document.querySelectorAll('#curves path[data-method=one]').length"
    assert browser.run(lines) == 2
    assert browser.run("document.querySelectorAll('#tasks-table tbody tr').length") == 2

    # Markup in names is shown as text; it made no elements and ran nothing.
    assert browser.run("document.querySelector('#tasks-table').textContent").count(EVIL) == 1
    assert browser.run("document.querySelector('h1').textContent") == f"On {EVIL}"
    assert browser.run("document.querySelectorAll('main img, main i, h1 b').length") == 0
    assert browser.run("window.broken === undefined")

    # A real click on a method's chip removes its curves, another brings them back.
    chip = place(browser, "#methods [data-method=one]")
    browser.click(*chip)
    assert browser.run(lines) == 0
    assert (
        browser.run("document.querySelector('#tasks-table thead').textContent.includes('one')")
        is False
    )
    browser.click(*chip)
    assert browser.run(lines) == 2

    # Scores switch between the last evaluation (30) and the mean of the last three (20).
    cell = "document.querySelector('#tasks-table tbody td').firstChild.textContent"
    assert browser.run(cell) == "30"
    browser.click(*place(browser, "#scoring [data-value=last3]"))
    assert browser.run(cell) == "20"
    browser.click(*place(browser, "#scoring [data-value=last]"))

    # The axis switches to wall-clock, which method `two` does not have.
    browser.click(*place(browser, "#axis [data-value=wall]"))
    assert browser.run("document.querySelector('#curves svg').textContent").count("wall-clock") == 1
    assert browser.run("document.querySelectorAll('#curves path[data-method=two]').length") == 0
    browser.click(*place(browser, "#axis [data-value=env]"))

    # Hovering shows values, intervals and seeds; leaving hides them; keys do the same.
    browser.move(*place(browser, "#curves svg"))
    shown = browser.run("document.querySelector('#tip').textContent")
    assert "env steps" in shown and "one" in shown and "seeds of" in shown
    browser.move(1, 1)
    assert browser.run("document.querySelector('#tip').hidden")
    key = "new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true})"
    browser.run(f"document.querySelector('#curves svg').dispatchEvent({key})")
    assert "20,000 env steps" in browser.run("document.querySelector('#tip').textContent")

    # A column is drawn instead of the score, of the methods and tasks that have it.
    drawn = "[...document.querySelectorAll('#curves path[data-method]')].map(p => p.dataset.method)"
    title = "[...document.querySelectorAll('#curves figcaption')].map(c => c.textContent)"
    score = browser.run(title)
    assert score == [f"dmc/{EVIL}return", "dmc/hopper-hopreturn"]
    browser.click(*place(browser, "#column [data-value=bias]"))
    assert browser.run(drawn) == ["three"] and browser.run(title) == ["dmc/hopper-hopbias"]
    assert "-0.004" in browser.run("document.querySelector('#curves svg').textContent")
    browser.run(f"document.querySelector('#curves svg').dispatchEvent({key})")
    assert "three-0.004" in browser.run("document.querySelector('#tip').textContent")
    browser.click(*place(browser, "#column button:last-of-type"))
    assert browser.run(title) == [f"dmc/hopper-hop{EVIL}"]
    pressed = "document.querySelector('#column [aria-pressed=true]').textContent"
    assert browser.run(pressed) == EVIL
    browser.click(*place(browser, "#column button"))
    assert browser.run(pressed) == "Score" and browser.run(title) == score

    # A number leads to the command and the commit that made it.
    href = browser.run("document.querySelector('#tasks-table tbody td a').getAttribute('href')")
    made_by = browser.run(f"document.querySelector('{href}').textContent")
    assert "ace train --one" in made_by and "abc1234" in made_by
    browser.click(*place(browser, "#tasks-table tbody td a"))
    assert browser.run("location.hash") == href

    # It looks different in the dark, and neither picture is blank.
    light = browser.screenshot(tmp_path / "light.png")
    browser.run("document.querySelector('#theme').click()")
    dark = browser.screenshot(tmp_path / "dark.png")
    assert light != dark and min(len(light), len(dark)) > 20_000

    # Nothing was fetched but the page itself, and nothing was logged or thrown.
    requested = [event["request"]["url"] for event in browser.of("Network.requestWillBeSent")]
    outside = [url for url in requested if not url.startswith(("data:", report.parent.as_uri()))]
    assert requested and not outside
    for kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
        assert not browser.of(kind)


def test_scores_below_zero_have_their_place(browser: Browser) -> None:
    """In the chart of aggregates, the mark of -50 lies in the middle of -60 to -40."""
    script = """(() => {
      const host = document.createElement("div"), style = { colour: "red" };
      const row = (name, value) => ({ name, label: name, style, whole: true, values: [value] });
      const below = { value: -50, low: -60, high: -40 }, above = { value: 20, low: null };
      dotChart(host, [row("a", below), row("b", above)], ["IQM"], 1000, () => []);
      const [low, high] = ["x1", "x2"].map((x) => +host.querySelector("g line").getAttribute(x));
      const marks = [...host.querySelectorAll("circle")].map((c) => +c.getAttribute("cx"));
      return [...marks, low, high];
    })()"""
    below, above, low, high = browser.run(script)
    assert 290 < low < below < high < above and below == pytest.approx((low + high) / 2)


def test_a_curve_that_only_begins_in_the_chart_is_left_out(browser: Browser) -> None:
    """Public curves begin at env step 0, and the next point may lie past the end of ours."""
    shown = "crop({ x: %s, y: %s }, 4000).x.length"
    assert browser.run(shown % ([0, 10_000], [1, 2])) == 0
    assert browser.run(shown % ([0, 3_000, 10_000], [1, 2, 3])) == 2
    assert browser.run(shown % ([1_000, 10_000], [1, 2])) == 1
    assert browser.run(shown % ([0], [1])) == 1


def test_narrow_window_does_not_scroll_sideways(browser: Browser) -> None:
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    assert browser.run("document.documentElement.scrollWidth") <= 400
    browser.call("Emulation.clearDeviceMetricsOverride")
