"""The Job of `make gpu-load` on a real API server: how it fails. How it succeeds is in test_scraping.py."""

from __future__ import annotations

import pytest

from components.kubernetes.load_job import load_job
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.gpu_load import load_cluster
from gpu_fleet.provider.kubernetes import ClusterApi
from gpu_fleet.stackfile.kubernetes import Kubernetes
from lab.kubernetes import Cluster


def test_a_job_that_finds_no_gpu_is_reported_in_the_schedulers_words_and_leaves_nothing(cluster: Cluster, namespace: str) -> None:
    section = Kubernetes.model_validate({"namespace": namespace})
    wanted = load_job(section, "gpu-load-1", test=1004, duration_s=1, resource="nvidia.com/mig-1g.10gb")
    wanted["spec"]["activeDeadlineSeconds"] = 2
    with pytest.raises(OperationError, match="gpu-load-1 failed"):
        load_cluster(ClusterApi(file=str(cluster.kubeconfig)), section, wanted)
    cluster.wait_for("the Job to go", lambda: cluster.api.read("batch/v1", "Job", "gpu-load-1", namespace) is None)
