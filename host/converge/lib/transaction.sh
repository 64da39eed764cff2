# One package transaction, separate from the run that needs it: in its own unit or session, so that Ctrl-C, a lost connection, a
# timer's time limit or a shutdown ends the waiting but never interrupts apt or dnf. packages.sh starts a copy of it and waits.
#
# Arguments: DIRECTORY FAMILY install|reinstall|purge|resolve NAME... (purge: NAME/remove keeps its configuration files)
# DIRECTORY:  lock      held while this runs
#             planned   what apt or dnf is about to install, in its own format, on disk before the first package is unpacked
#             names     what this transaction installed, NAME TAB HOW: how it is uninstalled, purge or remove
#             said      what was repaired first, for people
#             stderr    of the package manager
#             status    exit code, written last
# shellcheck shell=sh
set -u
directory=$1 family=$2 verb=$3
shift 3
LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin
export LC_ALL DEBIAN_FRONTEND PATH
exec 9>>"$directory/lock" </dev/null 2>>"$directory/stderr" || exit 1
# Caught instead of ignored: child processes would inherit ignored signals forever.
trap : HUP INT TERM
touch "$directory/planned" "$directory/names"

flush() {
  sync "$@" 2>/dev/null || sync
}

# without_lock COMMAND...: a daemon that a package starts must not hold our lock.
without_lock() {
  "$@" 9>&-
}

# --- Debian -------------------------------------------------------------------------------------------------------------------------

# apt itself reports what it is about to install, under its locks, so another installer's packages are never included. Protocol 3 of
# Pre-Install-Pkgs: its configuration, an empty line, then a line per package: name, version before (- for none), its architecture and
# Multi-Arch, <=>, version after, its architecture and Multi-Arch, file. Source: apt.conf(5), apt-pkg/deb/dpkgpm.cc of apt 2.6, read
# 2026-11-22.
apt() {
  # Without it, apt would remove conflicting packages, such as DCGM 3 in favor of DCGM 4, which is not ours to decide.
  without_lock apt-get -q -y -o DPkg::Lock::Timeout=120 --no-install-recommends --no-remove \
    -o "DPkg::Pre-Install-Pkgs::=sed '1,/^\$/d' >>$directory/planned && { sync $directory/planned 2>/dev/null || sync; }" \
    -o DPkg::Tools::Options::sed::Version=3 "$@" >>"$directory/log"
}

install_debian() {
  repair_dpkg
  # Configuration files left by an administrator's removed package are not ours to purge.
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^config-files //p' >"$directory/left-behind"
  apt install "$@" && return
  : >"$directory/stderr"
  apt update && apt install "$@" # a fresh Debian image has no package lists yet
}

# repair_dpkg: an interrupted dpkg refuses to work until `--configure -a` has run. An installer in progress looks the same, but holds
# the lock.
repair_dpkg() {
  repair_tries=60
  while [ -n "$(ls -A /var/lib/dpkg/updates)" ] || [ -n "$(dpkg --audit)" ]; do
    if without_lock dpkg --force-confdef --force-confold --configure -a >>"$directory/log" 2>"$directory/repair"; then
      echo "dpkg had been interrupted; it was repaired by dpkg --configure -a" >>"$directory/said"
      return
    fi
    repair_tries=$((repair_tries - 1))
    if ! grep -q 'lock' "$directory/repair" || [ "$repair_tries" -eq 0 ]; then
      echo "dpkg had been interrupted, and dpkg --configure -a failed: $(tail -n 1 "$directory/repair")" >>"$directory/said"
      return
    fi
    sleep 2
  done
}

purge_debian() {
  purge_tries=60
  purge_names=$(printf '%s\n' "$@" | grep -v '/remove$')
  # shellcheck disable=SC2046,SC2086 # names of packages have no spaces
  until without_lock dpkg --remove $(printf '%s\n' "$@" | sed 's,/remove$,,') >>"$directory/log" 2>"$directory/stderr" &&
    { [ -z "$purge_names" ] || without_lock dpkg --purge $purge_names >>"$directory/log" 2>"$directory/stderr"; }; do
    # dpkg does not wait for its lock, as apt does.
    purge_tries=$((purge_tries - 1))
    if ! grep -q 'lock' "$directory/stderr" || [ "$purge_tries" -eq 0 ]; then return 1; fi
    sleep 2
  done
}

names_debian() {
  awk -v native="$(dpkg --print-architecture)" '
    $2 == "-" && $9 !~ /^\*\*/ { print($7 == native || $7 == "all" ? $1 : $1 ":" $7) }' "$directory/planned" | sort -u |
    while IFS= read -r name; do
      case $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) in
        '' | not-installed | config-files) continue ;; # it did not get that far
      esac
      how=purge
      ! grep -qxF -e "${name%%:*}" "$directory/left-behind" || how=remove
      printf '%s\t%s\n' "$name" "$how"
    done
}

# --- RHEL ---------------------------------------------------------------------------------------------------------------------------

dnf_or_yum() {
  if command -v dnf >/dev/null; then
    without_lock dnf -y "$@" # without -q, which would hide the address that failed
  else
    without_lock yum -y "$@"
  fi
}

# In two steps, so that the list of what will be installed is on disk before the first package is.
install_rhel() {
  repair_rpm
  dnf_or_yum install --downloadonly "$@" >>"$directory/planned" && flush "$directory/planned" &&
    dnf_or_yum install "$@" >>"$directory/planned"
}

# repair_rpm: on releases whose database is Berkeley DB, the locks left by a killed rpm block every later one.
repair_rpm() {
  rpm --query --all >/dev/null 2>"$directory/repair" && ! grep -q '^error: ' "$directory/repair" && return
  if without_lock rpm --rebuilddb >>"$directory/log" 2>&1; then
    echo "rpm's database had been damaged; it was repaired by rpm --rebuilddb" >>"$directory/said"
  else
    echo "rpm's database is damaged, and rpm --rebuilddb failed: $(head -n 1 "$directory/repair")" >>"$directory/said"
  fi
}

# names_rhel: from dnf's transaction tables, the sections Installing, Installing dependencies and Installing weak dependencies.
# A name too long for its column is on a line of its own.
names_rhel() {
  awk -v native="$(uname -m)" '
    function bring() { if (name != "") print(arch == native || arch == "noarch" || arch == "" ? name : name "." arch); name = "" }
    /^Installing.*:$/ { bring(); listing = 1; next }
    !/^ / { bring(); listing = 0 }
    !listing { next }
    /^ [^ ]/ { bring(); name = $1; arch = $2; next }
    name != "" && arch == "" { arch = $1 }
    END { bring() }' "$directory/planned" | sort -u |
    while IFS= read -r name; do
      ! rpm --query "$name" >/dev/null 2>&1 || printf '%s\tpurge\n' "$name"
    done
}

# --- both ---------------------------------------------------------------------------------------------------------------------------

flock 9 || exit 1
code=0
case $verb in
  install) "install_$family" "$@" || code=$? ;;
  # The package's scripts did not finish, which rpm, unlike dpkg, does not record.
  reinstall) dnf_or_yum reinstall "$@" >>"$directory/log" || code=$? ;;
  purge)
    case $family in
      debian) purge_debian "$@" || code=$? ;;
      rhel) without_lock rpm --erase "$@" >>"$directory/log" || code=$? ;;
    esac
    ;;
  resolve) ;;
esac
"names_$family" >"$directory/names"
echo "$code" >"$directory/status.new"
flush "$directory/names" "$directory/status.new"
mv "$directory/status.new" "$directory/status"
