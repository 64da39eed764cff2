"""What the check of overrides reports before anything is changed."""

from __future__ import annotations

import pytest

from alerts.customization import Customization, Override
from gpu_fleet import signals
from gpu_fleet.signals import SignalErrors, check_signals
from gpu_fleet.signals.overrides import warnings

FILES = [file for file in signals.rule_files() if file.path.stem == "vocabulary"]


def problems(overrides: dict[str, Override], labels: dict[str, str] | None = None) -> str:
    try:
        check_signals(FILES, [], Customization(overrides=overrides, labels=labels or {}))
    except SignalErrors as errors:
        return str(errors)
    return ""


def test_overrides_of_every_kind_have_no_error_and_no_warning():
    overrides = {
        "GpuTemperatureHigh": Override(threshold=88, for_="15m", severity="critical", labels={"team": "ml"}),
        "HostDiskFilling critical": Override(threshold=0.98),
        "GpuEccUncorrected": Override(severity="warning"),
        "GpuIdleWhileAllocated": Override(is_enabled=False),
    }
    assert problems(overrides, {"team": "gpu"}) == ""
    assert list(warnings(Customization(overrides=overrides))) == []


@pytest.mark.parametrize(
    ("name", "override", "expected"),
    [
        ("GpuTempratureHigh", Override(threshold=88), "gpu-fleet:alerts.rules.GpuTempratureHigh: no alert of ours has this name"),
        ("GpuTempratureHigh", Override(threshold=88), "did you mean GpuTemperatureHigh"),
        ("gputemperaturehigh", Override(), "did you mean GpuTemperatureHigh"),
        ("Zzz", Override(), "docs/alert-coverage.md lists them"),
        ("HostDiskFilling info", Override(threshold=0.9), "HostDiskFilling has no rule 'info'"),
        ("GpuXid 9999", Override(severity="info"), "GpuXid has no rule '9999'"),
        ("HostSilent", Override(threshold=1), "rules.HostSilent.threshold: HostSilent does not compare with one number"),
        (
            "HostDiskFilling",
            Override(threshold=0.9),
            "different thresholds: warning (0.85) and critical (0.95)\n   expected: the name with a severity: `HostDiskFilling w",
        ),
        ("HostDiskFilling", Override(severity="warning"), "2 rules of HostDiskFilling would have the same labels"),
        ("GpuMissing", Override(is_enabled=False, for_="1m"), "disables the alert and changes it"),
        ("GpuMissing", Override(labels={"severity": "info"}), "'severity' is a label of ours"),
        ("GpuMissing", Override(labels={"instance": "x"}), "'instance' is a label of ours"),
        ("HostDiskFilling", Override(labels={"mountpoint": "x"}), "the alert has a label 'mountpoint' already"),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused_at_its_key(name: str, override: Override, expected: str):
    text = problems({name: override})
    assert expected in text, text
    assert text.startswith("1 error in rules and dashboards; nothing was changed."), text


def test_all_errors_are_reported_at_once():
    text = problems({"A": Override(), "HostSilent": Override(threshold=1, labels={"gpu": "x"})}, {"scope": "x"})
    assert text.startswith("4 errors in rules and dashboards; nothing was changed."), text


@pytest.mark.parametrize(
    "override", [Override(), Override(threshold=85), Override(for_="10m"), Override(severity="warning", labels={"scope": "gpu"})]
)
def test_an_override_that_changes_nothing_is_a_warning_with_the_values_that_our_rule_has(override: Override):
    (warning,) = warnings(Customization(overrides={"GpuTemperatureHigh": override}))
    assert warning.startswith(
        "gpu-fleet:alerts.rules.GpuTemperatureHigh changes nothing (threshold 85, for 10m, severity warning): remove it"
    )


def test_an_xid_that_no_longer_pages_is_a_warning_because_its_consequences_do_not_page_either():
    (warning,) = warnings(Customization(overrides={"GpuXid 79": Override(severity="warning")}))
    assert "held back" in warning
