# One package transaction, separate from the run that needs it: in its own unit or session, so that Ctrl-C, a lost connection, a
# timer's time limit or a shutdown ends the waiting but never interrupts apt or dnf. packages.sh starts a copy of it and waits.
#
# Only new packages are installed: one that would upgrade, replace or hide anything on this host is refused before it is unpacked.
#
# Arguments: DIRECTORY FAMILY install|reinstall|purge|resolve NAME... (purge: NAME/remove keeps its configuration files)
#            DIRECTORY debian guard: what apt calls before it unpacks anything
# DIRECTORY:  environment the proxy settings of the run that started this, for sh
#             lock        held while this runs
#             planned     what apt or dnf is about to install, in its own format, on disk before the first package is unpacked
#             refused     why nothing was installed
#             names       what this transaction installed, NAME TAB HOW: how it is uninstalled, purge or remove
#             said        what was repaired first, for people
#             stderr      of the package manager
#             status      exit code, written last
# shellcheck shell=sh
set -u
directory=$1 family=$2 verb=$3
shift 3
LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin
export LC_ALL DEBIAN_FRONTEND PATH
# What administrators hook into apt for their own upgrades: needrestart would restart services of the host, jobs and all (MODE is for
# versions that know no SUSPEND); the others would ask questions, or mail answers.
NEEDRESTART_SUSPEND=1 NEEDRESTART_MODE=l APT_LISTCHANGES_FRONTEND=none APT_LISTBUGS_FRONTEND=none UCF_FORCE_CONFFOLD=1
export NEEDRESTART_SUSPEND NEEDRESTART_MODE APT_LISTCHANGES_FRONTEND APT_LISTBUGS_FRONTEND UCF_FORCE_CONFFOLD
# shellcheck source=/dev/null
[ ! -f "$directory/environment" ] || . "$directory/environment"

# refuse REASON: the first one counts.
refuse() {
  [ -s "$directory/refused" ] || printf '%s\n' "$1" >"$directory/refused"
}

# is_ours NAME: a package that an earlier transaction of ours installed.
is_ours() {
  grep -q "^package	$1	" "$directory/../placed" 2>/dev/null
}

# check_file NAME PATH: a path of a package that is not installed yet. What exists there belongs to somebody, and dpkg and rpm would
# overwrite it without a word where it is of no package, as after an installation from an archive.
check_file() {
  case $2 in
    */systemd/system/*@*) ;;
    */systemd/system/*.service | */systemd/system/*.socket | */systemd/system/*.timer)
      [ ! -d /run/systemd/system ] || case $(systemctl show --property=LoadState --value "${2##*/}" 2>/dev/null) in
        '' | not-found) ;;
        *) refuse "$1 contains the unit ${2##*/}, which exists on this host ($(systemctl show --property=FragmentPath --value "${2##*/}"))" ;;
      esac
      ;;
    */bin/* | */sbin/*)
      for check_other in /usr/local/bin /usr/local/sbin /opt/bin; do
        [ ! -e "$check_other/${2##*/}" ] || refuse "$1 contains the program ${2##*/}, which exists on this host ($check_other/${2##*/})"
      done
      ;;
  esac
  [ -e "$2" ] || [ -L "$2" ] || return 0
  case $family in
    debian) check_owner=$(dpkg-query --search "$2" 2>/dev/null) ;; # "NAME: PATH", also of a package whose configuration was left
    rhel) check_owner=$(rpm --query --file "$2" --queryformat 'owned' 2>/dev/null) && return 0 ;; # rpm itself detects a conflict
  esac
  case "$check_owner" in
    "$1: "* | "$1:"*) ;;
    *) refuse "$1 contains $2, which exists on this host" ;;
  esac
}

# guard_debian: called by apt under its locks. A non-zero exit ends it with nothing changed.
guard_debian() {
  sed '1,/^$/d' >"$directory/asked"
  while read -r guard_name guard_before _ _ _ guard_after _ _ guard_file; do
    case $guard_file in
      '**'*) continue ;;
    esac
    if [ "$guard_before" != - ]; then
      is_ours "$guard_name" || refuse "it would replace $guard_name $guard_before by $guard_after"
      continue
    fi
    # What an interrupted installation has unpacked.
    case $(dpkg-query --show --showformat '${db:Status-Status}' "$guard_name" 2>/dev/null) in
      half-installed | unpacked | half-configured) continue ;;
    esac
    dpkg-deb --fsys-tarfile "$guard_file" | tar --list | sed 's,^\./,/,; /\/$/d' >"$directory/files"
    while IFS= read -r guard_path; do
      check_file "$guard_name" "$guard_path"
    done <"$directory/files"
  done <"$directory/asked"
  [ ! -s "$directory/refused" ] || return 1
  cat "$directory/asked" >>"$directory/planned"
  flush "$directory/planned"
}

flush() {
  sync "$@" 2>/dev/null || sync
}

if [ "$verb" = guard ]; then
  "guard_$family"
  exit
fi

exec 9>>"$directory/lock" </dev/null 2>>"$directory/stderr" || exit 1
# Caught instead of ignored: child processes would inherit ignored signals forever.
trap : HUP INT TERM
touch "$directory/planned" "$directory/names"

# without_lock COMMAND...: a daemon that a package starts must not hold our lock.
without_lock() {
  "$@" 9>&-
}

# --- Debian -------------------------------------------------------------------------------------------------------------------------

# apt itself reports what it is about to install, under its locks, so another installer's packages are never included. Protocol 3 of
# Pre-Install-Pkgs: its configuration, an empty line, then a line per package: name, version before (- for none), its architecture and
# Multi-Arch, <=>, version after, its architecture and Multi-Arch, file. Source: apt.conf(5), apt-pkg/deb/dpkgpm.cc of apt 2.6, read
# 2026-11-22.
#
# apt has three locks, and waits for at most one of them: of package lists, of downloads and of dpkg. At a host's first boot, when the
# daily upgrade runs too, any of them may be held for minutes.
APT_PATIENCE_S=900
apt() {
  apt_waited=0
  touch "$directory/log"
  while :; do
    apt_logged=$(wc -l <"$directory/log")
    # Without --no-remove, apt would remove conflicting packages, such as DCGM 3 in favor of DCGM 4, which is not ours to decide.
    without_lock apt-get -q -y --no-install-recommends --no-remove -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
      -o "DPkg::Pre-Install-Pkgs::=env sh '$0' '$directory' debian guard" -o DPkg::Tools::Options::env::Version=3 \
      "$@" >>"$directory/log" 2>"$directory/attempt"
    apt_code=$?
    if [ "$apt_code" -eq 0 ] || ! grep -q 'Could not get lock ' "$directory/attempt" || [ "$apt_waited" -ge "$APT_PATIENCE_S" ]; then
      cat "$directory/attempt" >>"$directory/stderr"
      # dpkg's own error, which apt prints among its output, says more than apt's about it.
      tail -n "+$((apt_logged + 1))" "$directory/log" | tr -d '\r' |
        sed -n '/^dpkg: error processing /{N;s/\n */ /;p;q}' >>"$directory/stderr"
      return "$apt_code"
    fi
    sleep 2
    apt_waited=$((apt_waited + 2))
  done
}

install_debian() {
  find_unfinished
  [ ! -s "$directory/refused" ] || return 1
  repair_dpkg
  # Configuration files left by an administrator's removed package are not ours to purge.
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^config-files //p' >"$directory/left-behind"
  apt install "$@" && return
  [ ! -s "$directory/refused" ] || return 1
  : >"$directory/stderr"
  apt update # a fresh Debian image has no package lists yet; a repository that fails does not matter where another has the packages
  apt install "$@"
}

# find_unfinished: refuses where somebody else has left a package half installed: apt and `dpkg --configure -a` would finish it, and so
# start or restart its services.
find_unfinished() {
  [ -n "$(unfinished)" ] || return 0
  apt check # waits for an installer in progress, which looks the same, but holds the lock
  : >"$directory/stderr"
  unfinished | while IFS= read -r unfinished_name; do
    is_ours "$unfinished_name" || refuse "$unfinished_name, which is not ours, is not fully installed; finish that (dpkg --configure -a), or remove it"
  done
}

unfinished() {
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^\(half-installed\|half-configured\|unpacked\) //p'
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
    # Without -q, which would hide the address that failed.
    without_lock dnf -y "--setopt=*.skip_if_unavailable=1" "$@"
  else
    without_lock yum -y "--setopt=*.skip_if_unavailable=1" "$@"
  fi
}

# In two steps, so that the list of what will be installed is on disk before the first package is.
install_rhel() {
  repair_rpm
  dnf_or_yum install --downloadonly "--setopt=destdir=$directory/rpms" "$@" >>"$directory/planned" && guard_rhel && flush "$directory/planned" &&
    dnf_or_yum install "$@" >>"$directory/planned"
}

# guard_rhel: the same from dnf's table and the packages that it has downloaded.
guard_rhel() {
  awk '/^[^ ]/ { listing = /^(Upgrading|Downgrading|Replacing|Removing)/ } listing && /^ [^ ]/ { print $1 }' "$directory/planned" |
    while IFS= read -r guard_name; do
      is_ours "$guard_name" || refuse "it would replace $guard_name"
    done
  planned_rhel | sed 's/\.\(i[3-6]86\|x86_64\|aarch64\|noarch\)$//' | while IFS= read -r guard_name; do
    find "$directory/rpms" /var/cache/yum -name "$guard_name-[0-9]*.rpm" -exec \
      rpm --query --package --nosignature --queryformat '[%{FILEMODES:perms} %{FILENAMES}\n]' {} + 2>/dev/null |
      sed -n '/^d/d; s/^[^ ]* //p' >"$directory/files"
    while IFS= read -r guard_path; do
      check_file "$guard_name" "$guard_path"
    done <"$directory/files"
  done
  [ ! -s "$directory/refused" ] && return
  : >"$directory/planned"
  return 1
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

# planned_rhel: the names in dnf's transaction tables, the sections Installing, Installing dependencies and Installing weak dependencies.
# A name too long for its column is on a line of its own.
planned_rhel() {
  awk -v native="$(uname -m)" '
    function bring() { if (name != "") print(arch == native || arch == "noarch" || arch == "" ? name : name "." arch); name = "" }
    /^Installing.*:$/ { bring(); listing = 1; next }
    !/^ / { bring(); listing = 0 }
    !listing { next }
    /^ [^ ]/ { bring(); name = $1; arch = $2; next }
    name != "" && arch == "" { arch = $1 }
    END { bring() }' "$directory/planned" | sort -u
}

names_rhel() {
  planned_rhel | while IFS= read -r name; do
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
