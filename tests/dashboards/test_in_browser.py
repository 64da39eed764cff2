"""Every dashboard in Chromium: what has data is drawn, what has none says why.

Which panels are empty in which mode is tested by test_real_data.py with queries to Mimir; here each dashboard is opened in as few
modes as it takes to show every panel with data and, if it can be empty, without.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboards.layout import all_panels
from lab.grafana.browser import Browser
from lab.showcase import MODES, Showcase
from lab.showcase.board import PASSWORD, USER, Board
from tests.dashboards.by_exporter import empty_panels
from tests.dashboards.test_real_data import BOARDS, PAGE, variables

MAIN, WIDTHS = "dcgm-4.9", (1280, 1920)  # the mode with the most data comes first, and is looked at on two screens
OPEN_ROWS = "document.querySelectorAll('section h2 button').forEach((row) => row.innerText.startsWith('▸') && row.click())"
UNDRAWN = "document.querySelectorAll('.panel[data-state=waiting]').length"
STATES = """[...document.querySelectorAll(".panel")].map((panel) =>
  [panel.querySelector("h3").innerText, panel.dataset.state, panel.querySelector(".body").innerText])"""


@pytest.fixture(scope="module")
def board(showcase: Showcase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    running = Board(showcase, tmp_path_factory.mktemp("grafana"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser(board: Board) -> Iterator[Browser]:
    with Browser() as browser:
        browser.log_in(USER, PASSWORD)
        yield browser


def passes(uid: str) -> list[str]:
    """The modes in which a dashboard is opened."""
    title = BOARDS[uid]["title"]
    panels = {panel["title"] for panel in all_panels(BOARDS[uid]) if panel["type"] != "row"}
    shown = {mode: {(panel, (title, panel) in empty_panels(PAGE.read_text(), mode)) for panel in panels} for mode in MODES}
    chosen, missing = [MAIN], set().union(*shown.values()) - shown[MAIN]
    while missing:
        chosen.append(max(MODES, key=lambda mode: len(shown[mode] & missing)))
        missing -= shown[chosen[-1]]
    return chosen


@pytest.mark.parametrize(("uid", "mode"), [(uid, mode) for uid in BOARDS for mode in passes(uid)])
def test_a_panel_is_drawn_or_says_why_not(mode: str, uid: str, showcase: Showcase, board: Board, browser: Browser) -> None:
    names = {variable["name"] for variable in BOARDS[uid]["templating"]["list"]}
    chosen = {name: [value] for name, value in variables(mode).items() if name in names and value != ".*"}
    browser.size(WIDTHS[0], 1080)
    browser.open(board.address(uid, start_s=showcase.start_s, end_s=showcase.end_s, variables=chosen))
    browser.run(OPEN_ROWS)
    browser.wait_for(UNDRAWN, 0)
    states = {title: (state, text) for title, state, text in browser.run(STATES)}
    expected = {panel for title, panel in empty_panels(PAGE.read_text(), mode) if title == BOARDS[uid]["title"]}
    assert {title for title, (state, _) in states.items() if state != "drawn"} == expected, states
    assert [title for title in expected if states[title][1] in ("", "No data")] == [], "an empty panel says why it is empty"
    assert browser.complaints == []
    for width in WIDTHS if mode == MAIN else WIDTHS[:1]:
        browser.size(width, 1080)
        assert browser.run("document.documentElement.scrollWidth") <= width, "people would have to scroll sideways"
