"""The lists of counters: the shipped ones, and the errors found in custom ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.host.dcgm.fields import TABLE, known_fields
from gpu_fleet.stackfile.counters import PRESETS, Counters, counters
from gpu_fleet.toolchain.versions import image


def errors(text: str) -> list[tuple[int, str, str]]:
    return [(error.line, error.what, error.fix) for error in Counters(text).find_errors()]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_shipped_counters_have_no_error_and_no_warning(preset: str) -> None:
    assert not errors(counters(preset).text) and not list(counters(preset).find_warnings())


def test_the_standard_list_has_what_breaks_first() -> None:
    names = {row.name for row in counters("standard").rows}
    assert names >= {
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY",
        "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_EXP_XID_ERRORS_TOTAL",
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "DCGM_EXP_CLOCK_EVENTS_TOTAL",
    }


def test_only_profiling_needs_sys_admin() -> None:
    assert not counters("standard").needs_sys_admin and counters("profiling").needs_sys_admin
    assert Counters("DCGM_FI_PROF_SM_UTIL_RATIO, gauge, x").needs_sys_admin, "the new names are profiling too"


def test_a_custom_list_is_used_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("DCGM_FI_DEV_GPU_TEMP, gauge, heat\n")
    assert counters("mine.csv", tmp_path).text == "DCGM_FI_DEV_GPU_TEMP, gauge, heat\n"


def test_the_table_of_fields_is_that_of_the_pinned_exporter() -> None:
    dcgm = TABLE.read_text().split()[4].rstrip(":")
    assert image("dcgm-exporter").tag.startswith(f"{dcgm}-"), "a new pin needs the table of its DCGM"


def test_both_names_of_a_field_are_known_and_are_one_field() -> None:
    known = known_fields()
    assert known["DCGM_FI_DEV_XID_ERRORS"] == known["DCGM_FI_DEV_XID_ERROR"] == 230
    assert known["DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION"] == known["DCGM_FI_DEV_GPU_RECOVERY_ACTION"] == 1523
    assert "DCGM_FI_DEV_FB_CAPACITY_BYTES" not in known, "a name of DCGM 4.7 would end the pinned exporter"


def test_every_wrong_line_is_named_with_its_number_and_the_field_that_was_meant() -> None:
    text = "\n".join(
        [
            "# a comment, with a comma",
            "DCGM_FI_DEV_GPU_UTILS, gauge, a",
            "",
            "dcgm_gpu_temp, gauge, a name of dcgm-exporter 1",
            "DCGM_FI_DEV_GPU_TEMP, gauge, hot, hotter",
            "DCGM_FI_DEV_FB_USED, guage, a",
            "DCGM_FI_DEV_FB_CAPACITY_BYTES, gauge, a",
            "ANYTHING, gauge, a",
        ]
    )
    found = errors(text)
    assert [line for line, _, _ in found] == [2, 4, 5, 6, 7, 8]
    assert "4.6.0-4.8.3-distroless does not know DCGM_FI_DEV_GPU_UTILS" in found[0][1]
    assert found[0][2] == "did you mean DCGM_FI_DEV_GPU_UTIL?" and found[1][2] == "did you mean DCGM_FI_DEV_GPU_TEMP?"
    assert found[2][1] == "has 4 fields" and found[3][1] == 'type "guage"' and "https://" in found[5][2]


def test_a_field_that_is_listed_twice_is_found_under_either_name() -> None:
    [(line, what, _)] = errors("DCGM_FI_DEV_GPU_TEMP, gauge, a\nDCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, a\n")
    assert line == 2 and what == "line 1 has DCGM_FI_DEV_GPU_TEMP, which is the same field as DCGM_FI_DEV_GPU_TEMP_CELSIUS"


def test_an_empty_list_is_an_error() -> None:
    assert errors("# nothing\n") == [(1, "lists no counter", "add some, or write `counters: standard`")]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT, gauge, a", "line 1: DCGM_FI_DEV_PCIE_TX_THROUGHPUT is gone in DCGM 4.7"),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, a\nDCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL, counter, a", "GB200 gives neither"),
        ("DCGM_FI_PROF_PCIE_TX_BYTES, counter, a", "line 1: DCGM_FI_PROF_PCIE_TX_BYTES is a rate"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a", "leaves out DCGM_FI_DEV_SM_CLOCK, "),
    ],
)
def test_valid_but_probably_unintended_values_cause_a_warning(lines: str, says: str) -> None:
    assert any(says in warning for warning in Counters(lines).find_warnings())


def test_a_list_with_the_new_names_leaves_nothing_out() -> None:
    numbers = {number: name for name, number in known_fields().items()}
    renamed = "\n".join(f"{numbers[row.number]}, {row.kind}, a" for row in counters("standard").rows if row.number is not None)
    assert not errors(renamed) and not list(Counters(renamed).find_warnings())
