"""Charts as .tgz files, made of what a test says."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from components.kubernetes.charts import Chart, ChartSource, fetched


def chart_file(directory: Path, members: Mapping[str, str], name: str = "sample") -> Chart:
    """`members`: path inside the chart to text. A Chart.yaml is added where there is none."""
    file = directory / f"{name}-1.0.0.tgz"
    members = {"Chart.yaml": f"apiVersion: v2\nname: {name}\nversion: 1.0.0\n", **members}
    with tarfile.open(file, "w:gz") as archive:
        for path, text in members.items():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size = len(data := text.encode())
            archive.addfile(info, io.BytesIO(data))
    return fetched(ChartSource(name=name, reference=str(file), version=""))
