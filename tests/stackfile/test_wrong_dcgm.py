"""The settings of dcgm-exporter in the stack file, checked before any host is contacted."""

from __future__ import annotations

from pathlib import Path

from tests.stackfile.stacks import problems, stack

GOOD = "DCGM_FI_DEV_GPU_TEMP, gauge, heat\n"


def report(base: Path, name: str = "mine.csv") -> str:
    return str(problems(stack(dcgm={"counters": name}), base))


def test_every_wrong_line_is_reported_with_the_file_and_the_fix(base: Path) -> None:
    (base / "mine.csv").write_text(f"{GOOD}DCGM_FI_DEV_GPU_UTILS, gauge, a\nDCGM_FI_DEV_FB_USED, guage, a\n")
    text = report(base)
    assert "2 errors" in text
    assert "mine.csv, line 2: dcgm-exporter 4.6.0-4.8.3-distroless does not know DCGM_FI_DEV_GPU_UTILS" in text
    assert "did you mean DCGM_FI_DEV_GPU_UTIL?" in text and 'mine.csv, line 3: type "guage"' in text


def test_a_list_without_errors_is_taken(base: Path) -> None:
    (base / "mine.csv").write_text(GOOD)
    assert problems(stack(dcgm={"counters": "mine.csv"}), base) is None


def test_a_list_that_cannot_be_read_is_reported_at_its_setting(base: Path) -> None:
    assert "gpu-fleet:dcgm.counters: none.csv does not exist" in report(base, "none.csv")
    (base / "image.csv").write_bytes(b"\xff\xfe\x00")
    assert "gpu-fleet:dcgm.counters: image.csv is not a text file" in report(base, "image.csv")
