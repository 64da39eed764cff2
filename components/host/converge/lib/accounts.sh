# Users, the group of those who may read our values, and distribution packages.
# shellcheck shell=sh

GROUP=gpu-fleet

has_group() {
  grep -q "^$1:" /etc/group || getent group "$1" >/dev/null 2>&1
}

# user_difference NAME GROUPS: sets DIFF. Groups that this host does not have are no difference.
user_difference() {
  DIFF=
  [ "$OWNERS" = yes ] || return 0
  if ! id -u "$1" >/dev/null 2>&1; then
    DIFF=missing
    return 0
  fi
  user_has=" $(id -Gn "$1") "
  for user_group in $(list_words "$2"); do
    case $user_has in
      *" $user_group "*) ;;
      *) has_group "$user_group" && DIFF="is not in group $user_group" ;;
    esac
  done
}

list_words() {
  [ "$1" = - ] || printf '%s\n' "$1" | tr , ' '
}

# place_user NAME HOME GROUPS PART
place_user() {
  if ! id -u "$1" >/dev/null 2>&1; then
    placed_add user "$1" "$4"
    place_shell=/usr/sbin/nologin
    [ -x "$place_shell" ] || place_shell=/bin/false
    place_group=--user-group
    has_group "$1" && place_group="--gid=$1"
    attempt "cannot make user $1" useradd --system --no-create-home "$place_group" --home-dir "$2" --shell "$place_shell" "$1" || return 1
  fi
  for place_group in $(list_words "$3"); do
    has_group "$place_group" || continue
    attempt "cannot put user $1 into group $place_group" usermod --append --groups "$place_group" "$1" || return 1
  done
}

place_group() {
  placed_add group "$1" "$2"
  attempt "cannot make group $1" groupadd --system "$1"
}

drop_user() {
  id -u "$1" >/dev/null 2>&1 || return 0
  attempt "cannot remove user $1" userdel "$1"
}

drop_group() {
  has_group "$1" || return 0
  attempt "cannot remove group $1" groupdel "$1"
}

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

# place_package FAMILY NAME PART. Packages stay when the part goes: by then others may use them.
place_package() {
  if [ "$OWNERS" = no ]; then
    fail unsupported "package $2 is missing, and only root can install it; install it and apply again"
    return 1
  fi
  say "$3: installing package $2"
  # A fresh Debian image has no package lists yet.
  if install_package "$1" install "$2" || { [ "$1" = debian ] && install_package debian update && install_package debian install "$2"; }; then
    : >"$SCRATCH/log"
    return 0
  fi
  cat "$SCRATCH/stderr" >>"$SCRATCH/log"
  fail_as download "cannot install package $2" "$(cat "$SCRATCH/stderr")"
}

install_package() {
  install_family=$1
  shift
  if [ "$install_family" = debian ]; then
    set -- apt-get -q -y -o DPkg::Lock::Timeout=120 --no-install-recommends "$@"
  elif command -v dnf >/dev/null; then
    set -- dnf -q -y "$@"
  else
    set -- yum -q -y "$@"
  fi
  DEBIAN_FRONTEND=noninteractive "$@" >"$SCRATCH/log" 2>"$SCRATCH/stderr" </dev/null 9>&-
}
