"""`python -m lab.hosts`: throw-away hosts for people."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

import yaml

from lab.hosts import image
from lab.hosts.errors import HostsError
from lab.hosts.site import Site, all_sites, reap
from lab.hosts.variants import VARIANTS


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        args.run(args)
    except HostsError as error:
        print(error, file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"{error.filename}: {error.strerror}. The lab's hosts belong to root: run it again with sudo.", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.hosts", description="Throw-away systemd hosts with sshd. Needs root.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    kinds = "; ".join(f"{variant.name}: {variant.text}" for variant in VARIANTS.values())
    up = verbs.add_parser("up", help="make hosts, one of each kind by default", epilog=kinds)
    up.add_argument("kinds", nargs="*", metavar="KIND[=COUNT]", help=", ".join(VARIANTS))
    up.set_defaults(run=_up)
    verbs.add_parser("list", help="what is up, and how to log in").set_defaults(run=_list)
    down = verbs.add_parser("down", help="remove sites; what killed tests left goes too")
    down.add_argument("numbers", nargs="*", metavar="SITE", help="all that no running process owns by default")
    down.set_defaults(run=_down)
    verbs.add_parser("clean", help="remove the cached roots too").set_defaults(run=_clean)
    return parser


def _up(args: argparse.Namespace) -> None:
    start = time.monotonic()
    hosts = {}
    for text in args.kinds or VARIANTS:
        kind, _, count = text.partition("=")
        if kind not in VARIANTS or not (count or "1").isdecimal():
            raise HostsError(f"{text!r} is no KIND[=COUNT]; the kinds are {', '.join(VARIANTS)}.")
        hosts |= {f"{kind}-{number}": VARIANTS[kind] for number in range(1, int(count or 1) + 1)}
    site = Site.up(hosts, owned=False)
    _show(site)
    section = {
        "gpu-fleet:ssh": {"user": "ops", "privateKeyFile": str(site.key_file), "knownHostsFile": str(site.known_hosts_file)},
        "gpu-fleet:hosts": site.stack_hosts(),
    }
    print("  For a stack file:")
    print("".join(f"    {line}\n" for line in yaml.safe_dump(section, sort_keys=False).splitlines()), end="")
    print(f"\nUp after {time.monotonic() - start:.1f} s. `.venv/bin/python -m lab.hosts down {site.directory.name}` removes it.")


def _list(args: argparse.Namespace) -> None:
    sites = all_sites()
    for site in sites:
        _show(site)
    if not sites:
        print("No hosts are up; `.venv/bin/python -m lab.hosts up` makes some.")


def _show(site: Site) -> None:
    print(f"Site {site.directory.name}, network {site.network.gateway}/24" + (", abandoned" if site.is_abandoned() else ""))
    for host in site.hosts.values():
        state = "up" if host.group.is_alive() else "off"
        print(f"  {host.name:<14} {host.address:<15} {state:<4} {host.variant.text}")
    print(f"  {'(black hole)':<14} {site.black_hole:<15}      answers nothing")
    print(f"  {'(stalling)':<14} {site.stalling:<15}      port 22 accepts and says nothing")
    print(f"  Log in:   ssh -F {site.directory / 'ssh_config'} -l LOGIN HOST")
    print(f"            {'; '.join(f'{login}: {text}' for login, text in image.LOGINS.items())}; root")
    print(f"            the sudo password is: {image.SUDO_PASSWORD}")


def _down(args: argparse.Namespace) -> None:
    reap()
    known = {site.directory.name: site for site in all_sites()}
    for number in args.numbers:
        if number not in known:
            raise HostsError(f"There is no site {number}; there is {', '.join(known) or 'none'}.")
    for site in [known[number] for number in args.numbers] or [site for site in known.values() if not site.is_owned()]:
        site.down()
        print(f"Site {site.directory.name} is gone.")


def _clean(args: argparse.Namespace) -> None:
    reap()
    if sites := all_sites():
        raise HostsError(f"Sites {', '.join(site.directory.name for site in sites)} still use the roots: take them down first.")
    shutil.rmtree(image.directory(), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
