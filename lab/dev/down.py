"""`make dev-down`: everything that `make dev` started or wrote is gone, also after a `make dev` that failed half-way."""

from __future__ import annotations

import toolchain
from lab.dev.up import release_stale_lock, revive_backend
from lab.dev.workspace import DEV, DevError, pulumi, remove_everything, run


def down() -> None:
    if (DEV / "state" / ".pulumi").exists():
        release_stale_lock()
        try:
            revive_backend()  # rules are removed from rulers, which must run for that
            pulumi("destroy", "--yes", "--skip-preview", "--continue-on-error", "--suppress-progress")
        except (DevError, toolchain.ToolchainError) as error:
            print(f"pulumi could not destroy all of it ({error}); stopping the rest by hand")
    stop_leftovers()
    remove_everything()
    print("The dev datacenter is gone; the toolchain stays in the cache.")


def stop_leftovers() -> None:
    """What an interrupted `up` started before the state knew of it."""
    host = DEV / "host"
    converge = host / "var/lib/gpu-fleet/current/converge"
    if converge.exists():
        run(["sh", str(converge), "remove", "--prefix", str(host)], check=False, capture=True)
    services = DEV / "backend"
    for service in sorted(services.iterdir()) if services.exists() else []:
        run(["sh", "components/backend/service.sh", "stop", service.name], check=False, extra={"SERVICE_DIR": str(services)})
