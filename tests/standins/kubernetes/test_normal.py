"""Quantities in the notation in which the API server and the official plugin write them."""

from __future__ import annotations

import pytest

from lab.standins.kubernetes.normal import canonical


@pytest.mark.parametrize(
    ("given", "written"),
    [
        *[("1000m", "1"), ("1500m", "1500m"), ("0.5", "500m"), ("1", "1"), (2, "2"), ("0", "0"), ("1000k", "1M")],
        *[("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("512Mi", "512Mi"), ("0.5Mi", "512Ki"), ("100Ki", "100Ki")],
        ("half", "half"),
    ],
)
def test_a_quantity_has_one_notation(given: object, written: str) -> None:
    assert canonical(given) == written
