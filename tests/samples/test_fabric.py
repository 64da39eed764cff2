"""Recorded lines of NVSwitches and links of GPUs against the tables of SXids and NVLinks."""

from __future__ import annotations

import re

from alerts import nvlink_rules
from alerts.sxid import CATALOGUE
from tests.samples.conftest import SAMPLES


def test_recorded_lines_of_switches_have_a_row_or_a_severity():
    with (SAMPLES / "kernel" / "kernel_sxid_lines.csv").open(newline="") as file:
        text = file.read()
    lines = re.findall(r"SXid \(PCI:[^)]*\): (\d+), ?(Fatal|Non-fatal)?", text)
    assert lines, "the recording has SXid lines"
    decided = [code for code, severity in lines if severity or int(code) in CATALOGUE]
    assert len(decided) > len(lines) / 2, "lines with more detail of an event have no severity of their own"


def test_the_recorded_links_of_a_product_are_those_of_the_table():
    for name, model in (
        ("azhpc-good_nvlink_status.txt", "A100"),
        ("gpud-nvlink-status-a100.txt", "A100"),
        ("gb200-s-partial.txt", "GB200"),
    ):
        text = (SAMPLES / "nvidia-smi" / "nvlink" / name).read_text()
        gpu = re.split(r"(?m)^GPU \d+: ", text)[1]
        product = next(one for one in nvlink_rules.PRODUCTS if re.fullmatch(one.model, gpu.partition(" (UUID")[0]))
        speeds = [float(speed) for speed in re.findall(r"Link \d+: ([\d.]+) GB/s", gpu)]
        assert (len(speeds), {speed * 1e9 for speed in speeds}) == (product.links, {product.speed}), model
