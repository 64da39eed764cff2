"""`make usage`: a month of which every hour is known, asked at a real store."""

from __future__ import annotations

import time
from calendar import monthrange, timegm
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.usage import HEAD, Month, csv_text, days, hours, notes, rows, table_of, tariff
from gpu_fleet.stackfile.config import StackConfig
from lab.showcase.remote_write import push
from tests.prometheus_server import PrometheusServer

HOUR = 3600
NOW = timegm((2026, 11, 27, 12, 0, 0))
LAST_MONTH = time.gmtime(time.time() - 32 * 24 * HOUR)
MONTH = time.strftime("%Y-%m", LAST_MONTH)
BEGIN = timegm((LAST_MONTH.tm_year, LAST_MONTH.tm_mon, 1, 0, 0, 0))
LENGTH = 24 * monthrange(LAST_MONTH.tm_year, LAST_MONTH.tm_mon)[1]
GAP = range(19 * 24, 19 * 24 + 6)  # hours in which the ruler was down

H100 = {"model": "H100"}
ALICE = {**H100, "state": "job", "account": "vision", "user": "alice"}
BOB = {**H100, "state": "idle", "account": "", "user": "bob"}
POD = {**H100, "state": "job", "namespace": "team-a"}
FREE = {**H100, "state": "unallocated"}
BROKEN = {**H100, "state": "broken"}


def count(labels: Mapping[str, str], hour: int) -> float:
    """Of eight GPUs: alice has four and a half from the fourth day on, bob two without using them, a pod half a GPU; one breaks
    for ten hours."""
    alice, broken = 4.5 * (hour >= 72), float(100 <= hour < 110)
    job = 0.5 if "namespace" in labels else alice
    return {"job": job, "idle": 2, "broken": broken, "unallocated": 5.5 - alice - broken}[labels["state"]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Mimir:
    settings = {"storage": {"tsdb": {"out_of_order_time_window": "100d"}}, "global": {"scrape_interval": "1m"}}
    with PrometheusServer(tmp_path_factory.mktemp("store"), settings, "--web.enable-remote-write-receiver") as server:
        minutes = [minute for minute in range(LENGTH * 60) if minute // 60 not in GAP]
        series = {}
        for labels in (ALICE, BOB, POD, FREE, BROKEN):
            named = {"__name__": "cluster:gpus_by_use:count", "datacenter": "d", "cluster": "c", **labels}
            samples = [(BEGIN + 60 * minute + 7, value) for minute in minutes if (value := count(labels, minute // 60))]
            series[tuple(sorted((key, text) for key, text in named.items() if text))] = samples
        for cluster, host, gpus in (("c", "a", 6), ("c", "b", 2), ("other", "a", 100)):
            named = {"__name__": "host:gpus_inventory:count", "datacenter": "d", "cluster": cluster, "instance": host, **H100}
            series[tuple(sorted(named.items()))] = [(BEGIN + 60 * minute + 7, float(gpus)) for minute in minutes]
        push(f"{server.url}/api/v1/write", series)
        yield Mimir(server.url, {})


def config(directory: Path, **grafana: object) -> StackConfig:
    stack: dict[str, object] = {"datacenter": "d", "cluster": "c", "metrics": {"url": "https://mimir.example.com/api/v1/push"}}
    stack["grafana"] = {"url": "https://grafana.example.com", **grafana}
    return StackConfig.load(stack, directory, frozenset({"grafanaAuth"}))


def test_a_month_adds_up_and_has_its_price(store: Mimir, tmp_path: Path) -> None:
    spans = days(MONTH, time.time())
    used, inventory, recorded = hours(store, '{datacenter="d",cluster="c"}', spans)
    hours_of = LENGTH - len(GAP)
    job = 4.5 * (hours_of - 72)
    free = 5.5 * hours_of - job - 10
    truth = {"job": job + 0.5 * hours_of, "idle": 2.0 * hours_of, "broken": 10.0, "unallocated": free}
    totals = {state: sum(sum(days.values()) for key, days in used.items() if key[1] == state) for state in truth}
    assert totals == pytest.approx(truth)
    assert (inventory, recorded) == pytest.approx((8 * hours_of, hours_of))
    one = config(tmp_path, costPerGpuHour=2.5, currency="EUR")
    assert csv_text(HEAD, list(rows(one, MONTH, used, tariff(one)))).splitlines() == [
        "month,datacenter,cluster,model,state,account,user,namespace,gpu_hours,cost,currency",
        f"{MONTH},d,c,H100,broken,,,,10.00,25.00,EUR",
        f"{MONTH},d,c,H100,idle,,bob,,{2 * hours_of:.2f},{5 * hours_of:.2f},EUR",
        f"{MONTH},d,c,H100,job,,,team-a,{0.5 * hours_of:.2f},{1.25 * hours_of:.2f},EUR",
        f"{MONTH},d,c,H100,job,vision,alice,,{job:.2f},{2.5 * job:.2f},EUR",
        f"{MONTH},d,c,H100,unallocated,,,,{free:.2f},{2.5 * free:.2f},EUR",
    ]
    assert list(notes(used, inventory, recorded, spans, tariff(one))) == [
        f"{8 * hours_of:,.1f} GPU-hours of {8 * hours_of:,.1f} in the inventory",
        f"Recorded for {hours_of:,.1f} of {LENGTH:,.1f} hours; the others are in no row.",
    ]
    # From the 20th on another price; the six hours in which nothing was recorded are on the 20th.
    until = 19 * 24
    two = config(tmp_path, costPerGpuHour={"H100": [{"cost": 2}, {"from": f"{MONTH}-20", "cost": 3}], "A100": 9})
    costs = {(row[4], row[6], row[7]): float(row[-2]) for row in rows(two, MONTH, used, tariff(two))}
    assert costs["idle", "bob", ""] == pytest.approx(2 * (2 * until + 3 * (hours_of - until)))
    assert costs["job", "alice", ""] == pytest.approx(4.5 * (2 * (until - 72) + 3 * (hours_of - until)))


def test_without_a_price_there_is_no_money_and_a_difference_is_named(tmp_path: Path) -> None:
    used = {("H100", "job", "vision", "alice", ""): {"2026-10-01": 10.0}}
    none = config(tmp_path)
    assert list(rows(none, "2026-10", used, tariff(none))) == [
        ("2026-10", "d", "c", "H100", "job", "vision", "alice", "", "10.00", "", "")
    ]
    assert list(notes(used, 10.04, 24, [(0, 24 * HOUR)], None)) == ["10.0 GPU-hours of 10.0 in the inventory"]
    _, differs = notes(used, 10.06, 24, [(0, 24 * HOUR)], None)
    assert "differ by more than 0.5 %" in differs


def test_a_node_that_slurm_has_powered_down_has_hours_and_no_cost(tmp_path: Path) -> None:
    used = {("H100", state, "", "", ""): {"2026-10-01": 8.0} for state in ("powered_down", "unallocated")}
    used["L4", "powered_down", "", "", ""] = {"2026-10-01": 3.0}
    priced = config(tmp_path, costPerGpuHour={"H100": 3})
    found = {(row[3], row[4]): row[-3:] for row in rows(priced, "2026-10", used, tariff(priced))}
    assert found["H100", "powered_down"] == ("8.00", "", "") and found["H100", "unallocated"] == ("8.00", "24.00", "USD")
    assert list(notes(used, 19, 24, [(0, 24 * HOUR)], tariff(priced))) == ["19.0 GPU-hours of 19.0 in the inventory"]


def test_a_model_without_a_price_is_named(tmp_path: Path) -> None:
    used = {
        ("H100", "job", "", "", "team-a"): {"2026-10-01": 10.0, "2026-10-02": 1.0},
        ("L4", "job", "", "", "team-a"): {"2026-10-01": 4.0},
    }
    priced = config(tmp_path, costPerGpuHour={"H100": [{"from": "2026-10-02", "cost": 3}]})
    assert [row[-3:] for row in rows(priced, "2026-10", used, tariff(priced))] == [("11.00", "3.00", "USD"), ("4.00", "", "")]
    assert list(notes(used, 15, 24, [(0, 24 * HOUR)], tariff(priced)))[1:] == [
        "10.0 GPU-hours of H100 have no price in grafana.costPerGpuHour.",
        "4.0 GPU-hours of L4 have no price in grafana.costPerGpuHour.",
    ]


def test_prices_are_those_of_the_stack_that_has_the_dashboards(
    store: Mimir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = "gpu-fleet:datacenter: d\n  gpu-fleet:cluster: c\n  gpu-fleet:grafanaAuth: {secure: v1}\n"
    grafana = '  gpu-fleet:grafana: {url: "https://grafana.example.com", costPerGpuHour: {H100: 2}, currency: CHF}\n'
    (tmp_path / "Pulumi.yaml").write_text("name: gpu-fleet\nruntime: python\n")
    (tmp_path / "Pulumi.observability.yaml").write_text(f"config:\n  {stack}{grafana}")
    (tmp_path / "Pulumi.poor.yaml").write_text("config: {gpu-fleet:datacenter: d, gpu-fleet:cluster: c}\n")
    monkeypatch.setenv("GPU_FLEET_STACKS", str(tmp_path))
    plain = StackConfig.load({"datacenter": "d", "cluster": "c"}, tmp_path)
    month = Month(MONTH, plain, store, '{datacenter="d",cluster="c"}', days(MONTH, time.time()))
    found, _ = table_of("observability", month)
    assert {row[-2:] for row in found if row[4] == "broken"} == {("20.00", "CHF")}
    assert {row[-2:] for row in table_of("", month)[0]} == {("", "")}
    with pytest.raises(OperationError, match="PRICES is poor, whose stack file has no"):
        table_of("poor", month)


def test_the_current_month_ends_now_and_a_wrong_one_is_refused() -> None:
    spans = days("2026-11", NOW)
    assert (len(spans), spans[-1]) == (27, (NOW - 12 * HOUR, NOW))
    assert (len(days("2024-02", NOW)), len(days("2025-12", NOW))) == (29, 31)
    assert days("2025-12", NOW)[-1][1] == timegm((2026, 1, 1, 0, 0, 0))
    for wrong in ("2026-13", "october", "", "2026-12"):
        with pytest.raises(OperationError, match="MONTH is"):
            days(wrong, NOW)
