"""The same for dnf: NVIDIA's stand-ins as rpms, and a distribution's Podman, which is Debian's own made into rpms.

All of it is built once, in a root of the lab's, since rpmbuild need not be on this machine:

    nvidia       the stand-ins; as with NVIDIA's own, what is signed is the list of packages, by `publish`
    appstream    Podman and what it needs, signed one by one with the key of the distribution beside them
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gpu_fleet.toolchain.progress import Progress
from lab.hosts.image import PACKAGE_FILES, RPM, Layer, ensure, shell
from lab.hosts.packages.repository import Repository
from lab.hosts.packages.stand_ins import VERSION, Package, packages

NVIDIA = "stable/rpm/x86_64"  # below the URL, as NVIDIA's
DISTRIBUTION = "appstream"
DISTRIBUTION_KEY = f"{DISTRIBUTION}/RPM-GPG-KEY-lab"


def spec(package: Package) -> str:
    """With the files' contents in it."""
    version, release = VERSION.split("-")
    relations = {"Requires": package.depends, "Conflicts": package.conflicts}
    related = "".join(f"{relation}: {other}\n" for relation, other in relations.items() if other)
    # Not by sh itself, which would be another package that it needs.
    installed = f"%post -p <lua>\nos.execute([[{package.installed}]])\n" if package.installed else ""
    written = "".join(
        f"install -D -m {mode:o} /dev/stdin %{{buildroot}}/{path} <<'END_OF_FILE'\n{content.replace('%', '%%')}END_OF_FILE\n"
        for path, (content, mode) in package.files.items()
    )
    return (
        f"Name: {package.name}\nVersion: {version}\nRelease: {release}\nBuildArch: x86_64\n{related}AutoReqProv: no\n"
        "Summary: stand-in of gpu-fleet's lab\nLicense: none\n%description\nNot NVIDIA's package.\n"
        f"%install\n{written}{installed}%files\n" + "".join(f"/{path}\n" for path in package.files)
    )


# One rpm for each of Debian's packages; Podman needs all the others. What the directories of a package are is not known to it, so
# those that the root does not have are its own.
_PODMAN_OF_DEBIAN = shell("podman-rpms")


def _layer() -> Layer:
    specs = "".join(
        f"cat >/tmp/specs/{package.name}.spec <<'END_OF_SPEC'\n{spec(package)}END_OF_SPEC\n"
        f"build nvidia /tmp/specs/{package.name}.spec\n"
        for package in packages()
    )
    return Layer(
        name="rpm-packages",
        below=RPM,
        packages=(),
        setup=f"""
mkdir /tmp/specs /tmp/files
# Quick instead of small, and nothing in the files is worked on.
build() {{
  rpmbuild --quiet -bb --define '_topdir /tmp/rpmbuild' --define "_rpmdir /{PACKAGE_FILES}/$1" \\
    --define '_build_name_fmt %%{{NAME}}.rpm' --define '_binary_payload w1.gzdio' --define '__os_install_post %{{nil}}' \\
    --define '_build_id_links none' "$2"
}}
{specs}
{_PODMAN_OF_DEBIAN}
export GNUPGHOME=/tmp/gnupg
mkdir -m 700 $GNUPGHOME
gpg --batch --quiet --passphrase '' --quick-gen-key 'gpu-fleet lab distribution' rsa2048 sign never
gpg --armor --export >/{PACKAGE_FILES}/RPM-GPG-KEY-lab
rpmsign --define '__gpg /usr/bin/gpg' --define '_gpg_name gpu-fleet lab distribution' \\
  --addsign /{PACKAGE_FILES}/appstream/*.rpm >/dev/null
gpgconf --kill all
mv /{PACKAGE_FILES}/RPM-GPG-KEY-lab /{PACKAGE_FILES}/appstream/
for repository in nvidia appstream; do createrepo_c --quiet --no-database /{PACKAGE_FILES}/$repository; done
rm -rf /tmp/specs /tmp/files /tmp/rpmbuild $GNUPGHOME
""",
    )


def publish_rpms(directory: Path, progress: Progress | None = None) -> Repository:
    """NVIDIA's repository, signed with a key made for this alone, and the distribution's beside it. Raises HostsError."""
    [root, *_] = ensure(_layer(), progress or Progress())
    repository = Repository(directory, packages_below=NVIDIA)
    shutil.copytree(root / PACKAGE_FILES / "nvidia", repository.packages)
    shutil.copytree(root / PACKAGE_FILES / "appstream", directory / DISTRIBUTION)
    repository.sign(repository.packages / "repodata" / "repomd.xml", "--armor", "--detach-sign", to="repomd.xml.asc")
    return repository
