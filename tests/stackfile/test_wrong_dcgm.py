"""The settings of dcgm-exporter in the stack file, checked before any host is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("section", "where", "words"),
    [
        ({"source": "package"}, "dcgm.source", "did you mean packages"),
        ({"runtime": "dokcer"}, "dcgm.runtime", "did you mean docker"),
        ({"install": "no"}, "dcgm.install", "without quotes"),
        ({"image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0"}, "dcgm.image", "name the image by its digest"),
        ({"toolkitRepository": {"keySha256": "0" * 64}}, "dcgm.toolkitRepository.url", "is missing"),
        (
            {"toolkitRepository": {"url": "https://m.example.com", "keySha256": "C95B"}},
            "dcgm.toolkitRepository.keySha256",
            "sha256sum",
        ),
        (
            {"source": "packages", "image": "r.example.com/d@sha256:" + "0" * 64},
            "dcgm.image",
            "has no effect with `source: packages`",
        ),
        ({"source": "packages", "runtime": "podman"}, "dcgm.runtime", "has no effect with `source: packages`"),
    ],
)
def test_an_error_about_how_it_is_run_is_reported_where_it_is(section: dict, where: str, words: str, base: Path) -> None:
    errors = problems(stack(dcgm=section), base)
    assert errors is not None
    assert [problem.where for problem in errors.problems] == [f"gpu-fleet:{where}"], str(errors)
    assert words in str(errors)
