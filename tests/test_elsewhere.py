"""The same stack for another user: from another directory and another home, without root, with another Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.toolchain import Cache
from tests.checkout import REPO
from tests.places import Place, two_hosts


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with two_hosts(tmp_path) as place:
        yield place


def test_stacks_of_a_directory_of_their_own_or_of_a_fork_are_unchanged_elsewhere_and_after_git_pull(
    place: Place, tmp_path: Path
) -> None:
    """Three checkouts of one stack: where it was deployed from, a colleague's with another home that was updated, and a fork that
    was merged."""

    def git(directory: Path, *arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=directory, capture_output=True, check=True)

    def commit(directory: Path) -> None:
        git(directory, "add", "--all", "--", ".", ":!.venv")
        git(directory, "commit", "--quiet", "--message", "of the test")

    def clone(directory: Path) -> None:
        git(tmp_path, "clone", "--quiet", str(upstream), str(directory))
        (directory / ".venv").symlink_to(REPO / ".venv")
        os.utime(directory / "requirements.txt", (0, 0))  # they are installed

    def make(*arguments: str) -> str:
        return place.run("make", "STAND_INS=1", *arguments)  # the stack is of the lab: programs.environment()

    upstream = place.checkout
    git(upstream, "init", "--quiet", "--initial-branch=main")
    commit(upstream)
    os.utime(upstream / "requirements.txt", (0, 0))
    first, second = tmp_path / "first/our stacks", tmp_path / "a/colleague"
    clone(second / "checkout")
    clone(tmp_path / "fork")

    # The first run: `make new-stack` in the checkout prepares the directory, every other command runs in it.
    place.project = upstream
    said = make("new-stack", f"STACKS={first}", "DATACENTER=us", "CLUSTER=west")
    assert f"wrote {first}/Pulumi.yaml\nwrote {first}/__main__.py\n" in said and "created the stack us-west" in said
    assert not (upstream / "Pulumi.us-west.yaml").exists()
    place.project = first
    schema = (first / "Pulumi.us-west.yaml").read_text().splitlines()[0].partition("$schema=")[2]
    assert (first / schema).is_file(), "editors find the schema"
    place.write_stack()
    place.pulumi("stack", "init", "training")
    assert "+ 6 created" in place.pulumi("up", "--yes", "--skip-preview"), "plain pulumi works in the directory"
    [state] = (tmp_path / "state").rglob("training.json")
    assert str(tmp_path) not in state.read_text(), "a path of this place is in everybody's state"

    # Upstream has news.
    (upstream / "CHANGELOG.md").write_text("# Changelog\n\nNews.\n")
    commit(upstream)

    # A colleague has the directory elsewhere, and updates the checkout beside it.
    shutil.copytree(first, second / "our stacks")
    place.project, place.home = second / "our stacks", second / "home"
    place.furnish_home()
    place.environment["HOME"] = str(place.home)
    git(second / "checkout", "pull", "--quiet", "--ff-only")
    assert "News." in (second / "checkout/CHANGELOG.md").read_text()
    assert "6 unchanged" in make("preview", "STACK=training")
    checked = place.run("sh", "-c", "! make check STACK=training STAND_INS=1")
    assert "2 hosts: 2 ok." in checked and "Whether samples of the hosts arrive is not known" in checked
    assert "2 known and unchanged." in make("known-hosts", "STACK=training")
    make("rules", "FOR=mimir", "STACK=training")
    assert "gpu-2" in (place.project / "build/rules/mimir/gpu-fleet.yaml").read_text()
    command = "echo 'pwd; pulumi config get gpu-fleet:cluster' | make shell STACK=training STAND_INS=1"
    assert f"{place.project}\ntraining\n" in place.run("sh", "-c", command)
    assert "there is no stack file Pulumi.nope.yaml" in place.run("sh", "-c", "! make up STACK=nope STAND_INS=1")

    # A fork has the stack file among its own commits, and merges.
    fork = place.project = tmp_path / "fork"
    place.write_stack()
    shutil.copy(first / "Pulumi.training.yaml", fork)  # with the key of the stack
    commit(fork)
    git(fork, "remote", "add", "upstream", str(upstream))
    git(fork, "pull", "--quiet", "--no-rebase", "--no-edit", "upstream", "main")
    assert "News." in (fork / "CHANGELOG.md").read_text()
    shutil.rmtree(first.parent)  # nothing is needed from where it was deployed
    place.pulumi("preview", "--refresh", "--expect-no-changes", "--diff")


def test_a_user_without_root_sets_up_and_previews_past_a_directory_of_the_path_that_cannot_be_read(
    place: Place, tmp_path: Path
) -> None:
    place.write_stack()
    # As root: a user who owns what root owns, without root's right to read everything.
    as_user = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"] if os.geteuid() == 0 else []
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    cache = tmp_path / "cache/gpu-fleet"
    cache.mkdir(parents=True)
    (cache / "tools").symlink_to(Cache().tools.resolve())
    environment = {"XDG_CACHE_HOME": str(cache.parent), "PATH": f"{closed}:{os.environ['PATH']}"}
    python = [*as_user, str(place.checkout / ".venv/bin/python"), "-m"]
    assert place.run(*as_user, "sh", "-c", f"id -u; ls {closed} 2>/dev/null || echo closed").split()[1:] == ["closed"]
    for arguments in (["lab.standins", "install", "--stack", "training"], ["gpu_fleet.toolchain", "list"]):
        place.run(*python, *arguments, environment=environment)
    pulumi = [*python, "lab.standins", "run", "--", "pulumi", "--non-interactive"]
    place.run(*pulumi, "stack", "init", "training", environment=environment)
    assert "+ 6 to create" in place.run(*pulumi, "preview", environment=environment)


# --- other Pythons ----------------------------------------------------------------------------------------------------------

# Syntax and standard library alone: the packages of requirements.txt are installed for one Python. CI runs everything on each one
# supported (.github/workflows/test.yml), and `make lint` refuses syntax that the oldest lacks (pyproject.toml, target-version).
READ = """
import re, sys, warnings
warnings.simplefilter("error")
for file in sys.stdin.read().splitlines():
    text = open(file, encoding="utf-8").read()
    compile(text, file, "exec", dont_inherit=True)
    # Lines, not a tree of the file: that takes three times as long. `make lint` refuses two modules on one.
    for top in re.findall(r"^ *(?:from|import) +(\\w+)", text, re.MULTILINE):
        if top in KNOWN and top not in sys.stdlib_module_names:
            sys.exit(f"{file}: Python {sys.version.split()[0]} has no {top}")
"""


def interpreters() -> list[Path]:
    """One of each version from 3.11 on that this machine has; of its own version, the one that runs the tests."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {path.parts[-3].rpartition(".")[0]: path for path in sorted(versions.glob("3.1[1-9].*/bin/python3"))}
    found |= {path.name.removeprefix("python"): path for path in Path("/usr/bin").glob("python3.1[1-9]")}
    found["{}.{}".format(*sys.version_info)] = Path(sys.executable)
    return list(found.values())


@pytest.mark.parametrize("python", interpreters(), ids=str)
def test_every_module_can_be_read_by_each_installed_python(python: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    program = f"KNOWN = {sorted(sys.stdlib_module_names)!r}\n{READ}"
    done = subprocess.run([python, "-c", program], cwd=REPO, input=listed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
