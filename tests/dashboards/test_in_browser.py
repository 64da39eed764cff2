"""Every dashboard in Chromium, with real data of every exporter mode: what has data is drawn, what has none says why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dashboards
from lab.grafana.browser import Browser
from lab.showcase import MODES, Showcase
from lab.showcase.board import PASSWORD, USER, Board
from tests.dashboards.by_exporter import empty_panels
from tests.dashboards.test_real_data import BOARDS, PAGE, variables

WIDTHS = {mode: (1280,) for mode in MODES} | {"dcgm-4.9": (1280, 1920)}  # the layout is the same in every mode
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


@pytest.mark.parametrize("uid", dashboards.all_dashboards())
@pytest.mark.parametrize(("mode", "width"), [(mode, width) for mode, widths in WIDTHS.items() for width in widths])
def test_a_panel_is_drawn_or_says_why_not(
    mode: str, width: int, uid: str, showcase: Showcase, board: Board, browser: Browser
) -> None:
    browser.size(width, 1080)
    names = {variable["name"] for variable in BOARDS[uid]["templating"]["list"]}
    chosen = {name: [value] for name, value in variables(mode).items() if name in names and value != ".*"}
    browser.open(board.address(uid, start_s=showcase.start_s, end_s=showcase.end_s, variables=chosen))
    browser.run(OPEN_ROWS)
    browser.wait_for(UNDRAWN, 0)
    states = {title: (state, text) for title, state, text in browser.run(STATES)}
    expected = {panel for title, panel in empty_panels(PAGE.read_text(), mode) if title == BOARDS[uid]["title"]}
    assert {title for title, (state, _) in states.items() if state != "drawn"} == expected, states
    assert [title for title in expected if states[title][1] in ("", "No data")] == [], "an empty panel says why it is empty"
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") <= width, "people would have to scroll sideways"
