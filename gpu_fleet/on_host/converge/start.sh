#!/bin/sh
# shellcheck source-path=SCRIPTDIR
# Makes this host match its bundle, or reports the differences: verifies that the program is whole, finds a Python that is new enough,
# and starts the program with it (lib/converge.pyz). README.md describes the verbs, the manifest, the output and the exit codes.
#
# usage: sh converge needs|plan|apply|check|remove --prefix DIR [--envelope DIR] [--artifacts DIR] [--stack NAME] [--instance NAME]
#   [--metrics FILE]
set -u
LC_ALL=C # the environment is read once the program is known to be whole
export LC_ALL
case $0 in
  */*) HERE=$(CDPATH='' cd -- "${0%/*}/" && pwd -P) ;;
  *) HERE=$(pwd -P) ;;
esac

# Checked before anything is read: with a part that a power cut emptied, the program would do half of the work and report success.
if ! { [ -s "$HERE/SHA256SUMS" ] && (cd "$HERE" && sha256sum -c SHA256SUMS >/dev/null 2>&1); }; then
  damaged=$(cd "$HERE" && sha256sum -c SHA256SUMS 2>/dev/null | sed -n 's/: FAILED.*//p' | head -n 3 | tr '\n' ' ')
  echo "the converge program in $HERE is damaged (${damaged:-SHA256SUMS }differs); nothing was done; the next \`up\`, or gpu-fleet-pull on a host in pull mode, restores it" >&2
  exit 11
fi

# shellcheck source=../../host/rootfs/opt/gpu-fleet/libexec/environment
. "$HERE/files/opt/gpu-fleet/libexec/environment" # messages of other programs are matched in English, and sort order must not depend on the host

# The distribution's first: one below a home directory, of pyenv or conda, may be gone tomorrow.
rest=/usr/bin:/usr/libexec:/usr/local/bin:$PATH:
while [ -n "$rest" ]; do
  directory=${rest%%:*}
  rest=${rest#*:}
  for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 platform-python; do
    # -I and -S: nothing that a user or a site has installed is imported.
    if [ -x "$directory/$name" ] && "$directory/$name" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
      exec "$directory/$name" -I -S -B -X utf8 "$HERE/lib/converge.pyz" "$@"
    fi
  done
done

if command -v dnf >/dev/null; then install="dnf install python3.12"; else install="apt-get install python3"; fi
message="this host has no Python 3.8 or newer, which places and checks everything here; nothing was done: install one (\`$install\`), and apply again"
echo "$message" >&2
[ "${1:-}" != needs ] || exit 0 # apply reports it
printf '{"event":"part","part":"host","status":"failed","error":{"code":"unsupported","message":"%s"}}\n' "$message"
printf '{"event":"result","verb":"%s","ok":false,"changed":0,"failed":1,"drift":0,"digest":"","settings_digest":""}\n' "${1:-}"
exit 1
