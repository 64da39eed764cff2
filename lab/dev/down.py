"""`make dev-down`: removes everything that `make dev` started or wrote, also after a `make dev` that failed halfway."""

from __future__ import annotations

from gpu_fleet import toolchain
from gpu_fleet.operations.deploy import SAVED_ONCE
from lab.dev import slurm
from lab.dev.up import release_stale_lock, revive_backend
from lab.dev.workspace import DEV, DevError, pulumi, remove_everything, run


def down() -> None:
    if (DEV / "state" / ".pulumi").exists():
        release_stale_lock()
        try:
            revive_backend()  # the rulers must run to delete their rules
            # The state goes with everything else: saving it after each of 200 deletions took most of the CPU seconds.
            pulumi("destroy", "--yes", "--skip-preview", "--continue-on-error", "--suppress-progress", extra=SAVED_ONCE)
        except (DevError, toolchain.ToolchainError) as error:
            print(f"pulumi could not destroy everything ({error}); stopping the rest")
    slurm.stop()
    stop_leftovers()
    remove_everything()
    print("The dev datacenter has been removed; the toolchain stays in the cache.")


def stop_leftovers() -> None:
    """Stops what an interrupted `up` started before it was in the state."""
    host = DEV / "host"
    converge = host / "var/lib/gpu-fleet/current/converge"
    if converge.exists():
        run(["sh", str(converge), "remove", "--prefix", str(host)], check=False, capture=True)
    services = DEV / "backend"
    for service in sorted(services.iterdir()) if services.exists() else []:
        run(["sh", "components/backend/service.sh", "stop", service.name], check=False, extra={"SERVICE_DIR": str(services)})
