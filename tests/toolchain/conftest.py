"""An upstream, a Go and a cache that are all on this machine, so that no test needs the network or a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_fleet.toolchain import Cache
from gpu_fleet.toolchain.programs import REPO, GoBuild
from tests.toolchain.fakes import NOBODY, Run, Upstream, executable, module


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    thread = threading.Thread(target=upstream.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield upstream
    upstream.server.shutdown()
    thread.join()
    upstream.server.server_close()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it: its PATH is `bin` (returned) and the few tools of /usr/bin that the fakes need."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "sleep", "mkdir", "chmod", "rm", "touch", "env", "dirname"):
        (tools / name).symlink_to(next(path for path in (Path("/usr/bin") / name, Path("/bin") / name) if path.exists()))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "GOTOOLCHAIN"):
        monkeypatch.delenv(name, raising=False)
    return tools


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def go(machine: Path, tmp_path: Path) -> Path:
    """A `go` on the PATH; `build` writes a program. Returns its notes: a line with the arguments of each build."""
    notes = tmp_path / "go.notes"
    executable(
        machine / "go",
        f"""#!/bin/sh
if [ "$1" = env ]; then echo "${{FAKE_GO_VERSION:-go1.99.0}}"; echo "${{FAKE_GOTOOLCHAIN:-local}}"; exit; fi
echo "cgo=$CGO_ENABLED modules=$GOMODCACHE flags=$GOFLAGS $*" >> {notes}
[ "$1" != list ] || {{ echo "$FAKE_GO_LISTS"; exit; }}
[ "$1" = build ] || exit 64
while [ "$1" != -o ]; do
  [ "$1" != -overlay ] || {{ read -r overlay <"$2"; echo "overlay=$overlay" >> {notes}; }}
  shift
done
mkdir -p "$GOMODCACHE" "$GOCACHE" && echo module > "$GOMODCACHE/module"
echo "github.com/some/package"
touch {tmp_path}/go.began
while [ -e {tmp_path}/go.hold ]; do sleep 0.02; done
[ -z "$FAKE_GO_SAYS" ] || {{ echo "$FAKE_GO_SAYS" >&2; exit 1; }}
printf '#!/bin/sh\\necho tool, version 1.2.3\\n' > "$2" && chmod 755 "$2"
""".encode(),
    )
    return notes


@pytest.fixture
def go_build(tmp_path: Path) -> GoBuild:
    return GoBuild(module=module(tmp_path / "module"), package="example.com/tool", seconds=61)


@pytest.fixture
def run(cache: Cache) -> Run:
    return Run(cache)


@pytest.fixture
def command(machine: Path) -> Callable[..., subprocess.Popen[str]]:
    """`python -m gpu_fleet.toolchain ...` in a process of its own, every upstream out of its reach."""

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gpu_fleet.toolchain", *arguments],
            cwd=REPO,
            env={**os.environ, "https_proxy": NOBODY, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start
