"""The tables of SXids and NVLinks: complete, cited, and refused where they are wrong."""

from __future__ import annotations

import re

import pytest

from alerts import nvlink_rules, rule_groups, sxid, sxid_rules
from alerts.tables import CatalogueError
from alerts.xid import Severity

HEADER = "code,name,short_description,severity,immediate_action,source"


def test_every_wrong_row_of_the_table_of_sxids_is_named_at_once():
    rows = ["1,a,b,deadly,none,x", "2,a,b,info,pray,x", "3,a,,info,none,x", "4,a,b,info,none,x", "4,c,b,info,none,x"]
    with pytest.raises(CatalogueError) as refused:
        sxid.read([HEADER, *rows])
    for expected in ("code 1: severity is 'deadly'", "code 2: immediate_action is 'pray'", "code 3: ", "code 4: is listed twice"):
        assert expected in str(refused.value)


def test_the_alert_has_the_text_of_the_table_for_codes_that_it_has():
    labels, annotations = sxid_rules.texts(Severity.CRITICAL)
    assert "egress sequence ID error: fatal to the whole fabric" in annotations["description"]
    assert "not in alerts/sxid.csv" in annotations["description"]
    assert re.search(r"\b12020\b[^}]*}}reboot_node", labels["action"])


@pytest.mark.parametrize(
    "model", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A100-PCIE-40GB", "NVIDIA L40S"]
)
def test_a_card_whose_links_depend_on_its_bridges_is_compared_with_its_own_past(model):
    assert [one.model for one in nvlink_rules.PRODUCTS if re.fullmatch(one.model, model)] == []


def test_products_that_always_have_links_are_the_same_for_dcgm_s_health_watch() -> None:
    [rule] = [rule for group in rule_groups("mimir") for rule in group.rules if rule.get("alert") == "GpuDcgmHealthFailing"]
    assert f'model!~"{"|".join(product.model for product in nvlink_rules.PRODUCTS)}"' in rule["expr"]
