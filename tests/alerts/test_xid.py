"""The XID catalogue: complete, and refused as a whole when a row cannot be trusted."""

from __future__ import annotations

import dataclasses
import re

import pytest

from alerts import passages, xid_rules
from alerts.generate import generated_files, outdated
from alerts.tables import CatalogueError
from alerts.xid import ACTION_TEXTS, CATALOGUE, CATALOGUE_FILE, LINES, Action, Severity, read

ALERTS = CATALOGUE_FILE.parent
ROOTFS = ALERTS.parent / "gpu_fleet" / "host" / "rootfs" / "etc" / "gpu-fleet" / "alloy" / "process_kernel.alloy"

HEADER = "code,mnemonic_or_short_name,short_description,likely_cause,severity,immediate_action,applies_to_notes,source\n"
ROW = "79,FELL_OFF,host can no longer reach the GPU,hw|bus,critical,reboot_node,A100 H100,catalogue\n"


def test_every_code_of_the_catalogue_and_the_driver_constants_are_there():
    assert sorted(CATALOGUE) == list(range(1, 177))


def test_codes_that_no_gpu_since_ampere_logs_raise_alerts_for_volta_and_turing():
    retired = [xid for xid in CATALOGUE.values() if xid.is_retired]
    assert len(retired) == 61
    assert all(xid.is_alerted for xid in retired)


def test_the_agent_and_the_rules_know_the_documented_codes():
    """Other codes carry the text of their line, and raise GpuXidUnknown."""
    known = {code for code, xid in CATALOGUE.items() if xid.severity is not Severity.UNDOCUMENTED}
    texts = (ROOTFS.read_text(), (ALERTS / "rules" / "xid-events.yaml").read_text())
    for text in texts:
        (pattern,) = set(re.findall(r'xid!~"(\[1-9\]\|[^"]*)"', text))
        assert {code for code in range(1, 1000) if re.fullmatch(pattern, str(code))} == known


def test_the_severity_of_an_nvlink_5_error_and_of_a_recovery_action_depends_on_the_line():
    critical = {(line.code, line.kind) for line in LINES if line.severity is Severity.CRITICAL}
    assert {(code, "fatal") for code in range(144, 151)} <= critical
    assert not {(code, "nonfatal") for code in range(144, 151)} & critical
    assert {kind for code, kind in critical if code == 154} == {"0x1", "0x2", "0x6", "0x7"}


def test_codes_without_a_public_description_raise_no_alert():
    undocumented = [xid for xid in CATALOGUE.values() if xid.severity is Severity.UNDOCUMENTED]
    assert undocumented and not any(xid.is_alerted for xid in undocumented)


def test_a_new_row_is_all_that_a_new_code_takes(monkeypatch):
    """`python -m alerts.generate` writes the rest, also the passages of files that are written by hand."""
    new = dataclasses.replace(CATALOGUE[95], code=512)
    for module in (passages, xid_rules):
        monkeypatch.setattr(module, "CATALOGUE", {**CATALOGUE, 512: new})
    texts = {path.relative_to(ALERTS.parent).as_posix(): text for path, text in generated_files().items()}
    assert all(re.search(r"\b512\b", texts[f"alerts/{file}.yaml"]) for file in ("rules/xid", "rules/xid-events", "loki/xid"))
    kernel_lines = texts[ROOTFS.relative_to(ALERTS.parent).as_posix()]
    assert '{xid!~"[1-9]|[1-9][0-9]|1[0-6][0-9]|17[0-3]|512"}' in kernel_lines
    assert {path.name for path in outdated()} == {"xid.yaml", "xid-events.yaml", "process_kernel.alloy"}


def test_every_action_has_a_text():
    assert set(ACTION_TEXTS) == set(Action)
    assert all(text.endswith(".") for text in ACTION_TEXTS.values())


def test_every_alerted_code_says_what_it_means():
    assert all(xid.meaning != "no public description" for xid in CATALOGUE.values() if xid.is_alerted)


def test_an_unknown_severity_is_rejected_with_the_code_and_the_expected_values():
    with pytest.raises(CatalogueError, match=r"code 79: severity is 'fatal'; expected one of critical, warning, info"):
        read([HEADER, ROW.replace("critical", "fatal")])


def test_an_unknown_action_is_refused():
    with pytest.raises(CatalogueError, match=r"code 79: immediate_action is 'burn'"):
        read([HEADER, ROW.replace("reboot_node", "burn")])


def test_a_duplicate_code_is_rejected():
    with pytest.raises(CatalogueError, match=r"code 79: is listed twice"):
        read([HEADER, ROW, ROW])


def test_all_errors_are_reported_at_once():
    with pytest.raises(CatalogueError) as error:
        read([HEADER, ROW.replace("critical", "fatal"), ROW.replace("79", "48").replace("reboot_node", "burn")])
    assert "code 79" in str(error.value)
    assert "code 48" in str(error.value)
