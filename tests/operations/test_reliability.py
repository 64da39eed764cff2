"""`make reliability`: a month in which every failure is known, asked at a real store."""

from __future__ import annotations

import time
from calendar import monthrange, timegm
from pathlib import Path

import pytest

from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.reliability import HEAD, Record, records, rows
from gpu_fleet.operations.usage import csv_text, days
from gpu_fleet.stackfile.config import StackConfig
from lab.showcase.remote_write import push
from tests.prometheus_server import PrometheusServer

LAST_MONTH = time.gmtime(time.time() - 32 * 86400)
MONTH = time.strftime("%Y-%m", LAST_MONTH)
BEGIN = timegm((LAST_MONTH.tm_year, LAST_MONTH.tm_mon, 1, 0, 0, 0))
LENGTH = 24 * monthrange(LAST_MONTH.tm_year, LAST_MONTH.tm_mon)[1]
# Cause, first hour and hours of each time that the host `bad` was down; the first began in the month before.
DOWN = (("silent", 0, 1), ("incident", 100, 6), ("maintenance", 200, 3), ("incident", 400, 2))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Mimir:
    settings = {"storage": {"tsdb": {"out_of_order_time_window": "100d"}}, "global": {"scrape_interval": "1m"}}
    with PrometheusServer(tmp_path_factory.mktemp("store"), settings, "--web.enable-remote-write-receiver") as server:
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}

        def add(name: str, at: float, value: float, **labels: str) -> None:
            key = {"__name__": name, "datacenter": "d", "cluster": "c", **labels}
            series.setdefault(tuple(sorted(key.items())), []).append((at, value))

        for minute in range(-30, LENGTH * 60):
            hour, at = minute // 60, BEGIN + 60 * minute + 7
            add("host:available:bool", at, 1, instance="good")
            causes = [cause for cause, first, lasts in DOWN if first - (first == 0) <= hour < first + lasts]
            add("host:available:bool", at, float(not causes), instance="bad")
            for cause in causes:
                add("host:down:bool", at, 1, instance="bad", model="H100", cause=cause)
            for cause in ("silent", "incident"):
                failed = sum(each == cause and (first == 0 or hour >= first) for each, first, _ in DOWN)
                if failed:
                    add("host:failures:total", at, failed, instance="bad", cause=cause)
        push(f"{server.url}/api/v1/write", series)
        yield Mimir(server.url, {})


def test_a_month_of_a_host_that_failed_twice_and_of_one_that_did_not(store: Mimir, tmp_path: Path) -> None:
    config = StackConfig.load({"datacenter": "d", "cluster": "c"}, tmp_path)
    found = records(store, '{datacenter="d",cluster="c"}', days(MONTH, time.time()))
    about, down = f"{MONTH},d,c", 12
    assert csv_text(HEAD, list(rows(config, MONTH, found))).splitlines() == [
        "month,datacenter,cluster,host,model,cause,failures,hours_down,hours_observed,availability_percent,"
        "hours_between_failures,hours_to_repair",
        f"{about},bad,H100,,2,12.00,{LENGTH}.00,{100 * (1 - down / LENGTH):.3f},{(LENGTH - down) / 2:.2f},4.50",
        f"{about},bad,H100,incident,2,8.00,,,,",
        f"{about},bad,H100,maintenance,0,3.00,,,,",
        f"{about},bad,H100,silent,0,1.00,,,,",
        f"{about},good,,,0,0.00,{LENGTH}.00,100.000,,",
    ]


def test_a_host_that_was_not_observed_has_no_row(tmp_path: Path) -> None:
    config = StackConfig.load({"datacenter": "d", "cluster": "c"}, tmp_path)
    assert list(rows(config, MONTH, {"new": Record(failures={"silent": 1})})) == []


class Restarted(Mimir):
    """The ruler was down from the tenth day to the twelfth, and then began again with one failure."""

    def vector(self, query: str, *, at: float) -> list[tuple[dict[str, str], float]]:
        day = (at - BEGIN) / 86400
        if "failures:total" not in query or 10 < day <= 12:
            return []
        return [({"instance": "bad", "cause": "silent"}, 5 if day <= 2 else 6 if day <= 10 else 1 if day <= 20 else 2)]


def test_failures_are_counted_across_an_outage_of_the_ruler() -> None:
    found = records(Restarted("http://nowhere", {}), "{}", days(MONTH, time.time()))
    assert found["bad"].failures == {"silent": 1 + 1 + 1}
