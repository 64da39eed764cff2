"""Names that outlive a deployment."""

from __future__ import annotations

import re

import pytest

from gpu_fleet.stackfile.naming import grafana_uid, slug


@pytest.mark.parametrize("names", [("x" * 60,), ("Zürich", "Training"), ("us-west", "training"), ("a/b",), ("",)])
def test_a_uid_is_one_that_grafana_takes(names: tuple[str, ...]) -> None:
    assert re.fullmatch(r"[a-z0-9-]{1,40}", grafana_uid("folder", *names))


def test_uids_of_different_names_differ() -> None:
    names = [
        ("us", "west-training"),
        ("us-west", "training"),
        ("us.west", "training"),
        ("US-west", "training"),
        ("x" * 50,),
        ("x" * 51,),
    ]
    assert len({grafana_uid("folder", *name) for name in names}) == len(names)


def test_a_uid_never_changes() -> None:
    """A changed uid is a new dashboard: links, stars and history of the old one are lost."""
    assert grafana_uid("folder", "us-west", "training") == "folder-us-west-training-451e3cf8"


def test_a_slug_holds_lower_case_letters_digits_and_hyphens() -> None:
    assert slug("GPU fleet: XID & health ") == "gpu-fleet-xid-health"
