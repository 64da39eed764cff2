"""Which of two pods writes: the one that holds the Lease, a record in the API server that both renew with its version.

A Lease that nobody renews is free after LEASE_S, counted from when this pod saw it change: the clocks of two nodes may differ.
"""

from __future__ import annotations

import time

from .nodes import Api, ApiError

LEASE = "gpu-fleet-ready"
LEASE_S = 120  # four rounds. The writes of a round take 20 s, and the last one at most 30 more


class Lease:
    """`pod`: our name in it, which no other pod has; a container that is started again in the same pod keeps it."""

    def __init__(self, api: Api, pod: str) -> None:
        self._api, self._pod = api, pod
        self._seen, self._seen_at = "", 0.0

    def taken(self, now: float) -> str:
        """Empty: we hold it until LEASE_S after `now`. Otherwise who does. Raises ApiError."""
        found = self._api.lease(LEASE)
        holder, version = found.get("spec", {}).get("holderIdentity", ""), found["metadata"]["resourceVersion"]
        if version != self._seen:
            self._seen, self._seen_at = version, now
        if holder not in ("", self._pod) and now - self._seen_at < LEASE_S:
            return str(holder)
        return self._renewed(version, now)

    def _renewed(self, version: str, now: float) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(now))
        spec = {"holderIdentity": self._pod, "leaseDurationSeconds": LEASE_S, "renewTime": at}
        try:
            self._api.set_lease(LEASE, {"metadata": {"resourceVersion": version}, "spec": spec})
        except ApiError as error:
            if error.status != 409:
                raise
            return "another pod"  # it was faster
        return ""
