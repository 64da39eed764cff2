# Distribution packages: by apt or dnf, and away again by dpkg or rpm, which never take along what others need.
# shellcheck shell=sh

# package_family: debian, rhel or what /etc/os-release says.
package_family() {
  package_like=" $(sed -n 's/^ID\(_LIKE\)\{0,1\}=//p' /etc/os-release 2>/dev/null | tr '"\n' '  ') "
  case $package_like in
    *" debian "* | *" ubuntu "*) echo debian ;;
    *" rhel "* | *" fedora "* | *" centos "*) echo rhel ;;
    *) echo "${package_like:-unknown}" | tr -d ' ' ;;
  esac
}

has_package() {
  case $1 in
    debian) [ "$(dpkg-query -W -f '${db:Status-Status}' "$2" 2>/dev/null)" = installed ] ;;
    rhel) rpm -q "$2" >/dev/null 2>&1 ;;
  esac
}

# list_packages FAMILY: their names, sorted. The distribution's keys, which dnf imports with the first package it installs, are in
# rpm's list too; but other packages are verified by them, so they never count as brought by one.
list_packages() {
  case $1 in
    debian) dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' ;;
    rhel) rpm -qa --qf '%{NAME}\n' | grep -vx gpg-pubkey ;;
  esac | sort -u
}

# place_package FAMILY NAME PART: records what came along with it too, so that all of it can go.
place_package() {
  if [ "$OWNERS" = no ]; then
    fail unsupported "package $2 is missing, and only root can install it; install it and apply again"
    return 1
  fi
  say "$3: installing package $2"
  list_packages "$1" >"$SCRATCH/packages"
  # A fresh Debian image has no package lists yet.
  if install_package "$1" install "$2" || { [ "$1" = debian ] && install_package debian update && install_package debian install "$2"; }; then
    : >"$SCRATCH/log"
    list_packages "$1" | comm -13 "$SCRATCH/packages" - | PART=$3 awk '{ print "package\t" $0 "\t" ENVIRON["PART"] "\t-\t-\t-" }' >"$SCRATCH/records"
    placed_merge "$SCRATCH/records"
    return
  fi
  cat "$SCRATCH/stderr" >>"$SCRATCH/log"
  # What could not be fetched explains what was not found, which is what they end with.
  package_cause=$(grep -m 1 -E 'Failed to fetch |Curl error |Failed to download metadata |nothing provides ' "$SCRATCH/stderr" | sed 's/^ *- *//')
  fail_as download "cannot install package $2" "$(cat "$SCRATCH/stderr" && printf '%s\n' "$package_cause")"
}

install_package() {
  install_family=$1
  shift
  if [ "$install_family" = debian ]; then
    # What another package conflicts with is not ours to remove: DCGM 3 makes room for DCGM 4.
    set -- apt-get -q -y -o DPkg::Lock::Timeout=120 --no-install-recommends --no-remove "$@"
  elif command -v dnf >/dev/null; then
    set -- dnf -y "$@" # with -q it does not say which address failed
  else
    set -- yum -y "$@"
  fi
  ! is_confined || set -- systemd-run --quiet --collect --wait --pipe --setenv=DEBIAN_FRONTEND=noninteractive "$@"
  DEBIAN_FRONTEND=noninteractive "$@" >"$SCRATCH/log" 2>"$SCRATCH/stderr" </dev/null 9>&-
}

# is_confined: does this run in a service like pull's? There rpm cannot change its root, no file may be set-user-id or have
# capabilities, and what packages run to set themselves up wants all of the system. systemd starts the package manager beside it.
is_confined() {
  [ -d /run/systemd/system ] && grep -q '^NoNewPrivs:[[:space:]]*1' /proc/self/status
}

# drop_packages PART: what the part brought, all together since they need each other; unless others need them by now, which is told.
# Only a host that is left for good is asked: another exporter for a while is no reason to take a container runtime away.
drop_packages() {
  placed_of "$1" package | cut -f 2 >"$SCRATCH/packages"
  [ -s "$SCRATCH/packages" ] || return 0
  drop_family=$(package_family)
  drop_why=$(packages_in_use "$1")
  # shellcheck disable=SC2046 # names of packages have no spaces
  if [ -z "$drop_why" ] && ! purge "$drop_family" test $(cat "$SCRATCH/packages"); then
    drop_why="other packages need it"
  fi
  if [ -z "$drop_why" ]; then
    say "$1: removing packages: $(tr '\n' ' ' <"$SCRATCH/packages")"
    # shellcheck disable=SC2046
    stop_services "$drop_family" $(cat "$SCRATCH/packages")
    # shellcheck disable=SC2046
    purge "$drop_family" go $(cat "$SCRATCH/packages") || drop_why="it could not be removed: $(tail -n 1 "$SCRATCH/stderr")"
  fi
  WHY=$drop_why awk '{ print "package " $0 ": " (ENVIRON["WHY"] == "" ? "removed" : "stays, since " ENVIRON["WHY"]) }' \
    "$SCRATCH/packages" >>"$SCRATCH/changes"
}

# packages_in_use PART: who uses them, in words, or nothing. The part's own script knows; where it fails they are not ours to take.
packages_in_use() {
  records "$1" keep
  while IFS= read -r keep_script; do
    within 60 sh "$HERE/files$keep_script" "$1" 2>/dev/null </dev/null || echo "it is not known who else uses it"
  done <"$RECORDS"
}

# stop_services FAMILY NAME...: what the packages run. Not all of them stop it when they go: DCGM's host engine would run on without
# its files.
stop_services() {
  stop_family=$1
  shift
  case $stop_family in
    debian) dpkg-query --listfiles "$@" ;;
    rhel) rpm --query --list "$@" ;;
  esac 2>/dev/null | sed -n 's,.*/systemd/system/\([^/@]*\.\(service\|socket\|timer\)\)$,\1,p' | sort -u >"$SCRATCH/services"
  # shellcheck disable=SC2046 # names of units have no spaces
  [ ! -s "$SCRATCH/services" ] || systemctl --quiet disable --now $(cat "$SCRATCH/services") >/dev/null 2>&1 </dev/null || true
}

# purge FAMILY test|go NAME...
purge() {
  case $1:$2 in
    debian:test) shift 2 && set -- dpkg --simulate --purge "$@" ;;
    debian:go) shift 2 && set -- dpkg --purge "$@" ;;
    rhel:test) shift 2 && set -- rpm --erase --test "$@" ;;
    rhel:go) shift 2 && set -- rpm --erase "$@" ;;
    *) return 1 ;;
  esac
  DEBIAN_FRONTEND=noninteractive "$@" >"$SCRATCH/log" 2>"$SCRATCH/stderr" </dev/null 9>&-
}
