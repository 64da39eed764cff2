# Distribution packages: installed by apt or dnf, removed by dpkg or rpm, which never remove what other packages need.
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

# is_present FAMILY NAME: on this host in any state, including an interrupted installation.
is_present() {
  case $1 in
    debian)
      case $(dpkg-query -W -f '${db:Status-Status}' "$2" 2>/dev/null) in
        '' | not-installed | config-files) return 1 ;;
      esac
      ;;
    rhel) rpm -q "$2" >/dev/null 2>&1 ;;
  esac
}

# place_package FAMILY NAME PART: records what its transaction installed, so that all of it can be removed.
place_package() {
  if [ "$OWNERS" = no ]; then
    fail unsupported "package $2 is missing, and only root can install it; install it and apply again, or apply as root"
    return 1
  fi
  say "$3: installing package $2"
  transact "$3" "$1" install "$2"
  place_code=$?
  [ "$place_code" -eq 0 ] || [ -s "$STATE/packages/status" ] || return 1 # it was killed, or hangs; the next run settles it
  cp "$STATE/packages/stderr" "$SCRATCH/stderr"
  rm -f "$SCRATCH/refused"
  [ ! -f "$STATE/packages/refused" ] || cp "$STATE/packages/refused" "$SCRATCH/refused"
  [ ! -f "$STATE/packages/said" ] || cat "$STATE/packages/said" >>"$SCRATCH/changes"
  record_transaction "$3" || return 1
  [ "$place_code" -ne 0 ] || return 0
  cat "$SCRATCH/stderr" >>"$SCRATCH/log"
  if [ -s "$SCRATCH/refused" ]; then
    IFS= read -r place_refused <"$SCRATCH/refused"
    fail unsupported "package $2 was not installed, and nothing was changed: $place_refused. Next: set \`exporter: nvidia_gpu_exporter\`, which needs no packages, for this host, or install $2 yourself"
    return 1
  fi
  # The package managers end with what was not found; what could not be downloaded explains it, but nothing that went wrong later.
  package_cause=
  grep -qE '^(dpkg: error|E: Sub-process) ' "$SCRATCH/stderr" ||
    package_cause=$(grep -m 1 -E 'Failed to fetch |Curl error |Failed to download metadata |nothing provides ' "$SCRATCH/stderr" | sed 's/^ *- *//')
  fail_as download "cannot install package $2" "$(cat "$SCRATCH/stderr" && printf '%s\n' "$package_cause")"
}

# --- transactions: once started, never cut short by the end of this run, see transaction.sh ------------------------------------------

# transact PART FAMILY VERB NAME...: starts a transaction and waits for its end. Returns its exit code; with the error set when it
# could not be started, or was killed.
transact() {
  if [ -e "$STATE/packages/lock" ] && is_transaction_running; then
    fail locked "the package manager, which an earlier part started, is still running; apply again once it has ended"
    return 1
  fi
  rm -rf "$STATE/packages"
  # A copy of the script: the bundle that it comes from may be deleted while it runs.
  (umask 077 && mkdir "$STATE/packages" && cp "$HERE/lib/transaction.sh" "$STATE/packages/" && printf '%s\n' "$*" >"$STATE/packages/request.new") &&
    (umask 077 && save_proxies >"$STATE/packages/environment") &&
    commit "$STATE/packages/request.new" "$STATE/packages/request" || return 1
  transact_part=$1
  shift
  set -- sh "$STATE/packages/transaction.sh" "$STATE/packages" "$@"
  if [ -d /run/systemd/system ]; then
    # mixed: only the script gets a shutdown's signal, and it continues; the shutdown waits for it.
    attempt "systemd does not start the unit in which packages are installed" systemd-run --quiet --collect --unit=gpu-fleet-packages \
      --description="Package manager, started by gpu-fleet" --property=KillMode=mixed --property=TimeoutStopSec=15min "$@" || return 1
  else
    setsid "$@" >/dev/null 2>&1 </dev/null 8>&- 9>&- &
  fi
  await_transaction "$transact_part" 50
}

# How long a run waits for a package manager, which takes minutes even for a driver on a slow mirror. One that hangs (a maintainer script
# that waits for an answer, a dead NFS mount) is never ended: a package that is cut off in the middle breaks later installations.
AWAIT_LONGEST_S=7200

# await_transaction PART TRIES: waits for its end. TRIES: how many times it may be found neither running nor done.
await_transaction() {
  read_uptime
  await_began=$UPTIME_S await_next=30 await_tries=$2
  until [ -s "$STATE/packages/status" ]; do
    if is_transaction_running; then
      await_tries=3
    else
      await_tries=$((await_tries - 1))
    fi
    if [ "$await_tries" -le 0 ] && [ ! -s "$STATE/packages/status" ]; then
      fail internal "the package manager was killed before it finished; apply again, which first repairs what it left"
      return 1
    fi
    read_uptime
    await_s=$((UPTIME_S - await_began))
    if [ "$await_s" -ge "$await_next" ]; then
      say "$1: the package manager has been running for $await_s seconds"
      await_next=$((await_next + 30))
    fi
    if [ "$await_s" -ge "$AWAIT_LONGEST_S" ]; then
      fail locked "the package manager has been running for $((await_s / 60)) minutes ($(cut -d ' ' -f 3- "$STATE/packages/request")); it was left alone, since a package must not be cut off in the middle: see what it waits for (ps -ef --forest; systemctl status gpu-fleet-packages), and apply again once it has ended"
      return 1
    fi
    pause
  done
  return "$(cat "$STATE/packages/status")"
}

is_transaction_running() {
  ! flock -s -n "$STATE/packages/lock" true
}

# record_transaction PART: records what the transaction installed as ours, and forgets the transaction.
record_transaction() {
  PART=$1 awk -F "$TAB" '{ print "package" FS $1 FS ENVIRON["PART"] FS $2 FS "-" FS "-" }' "$STATE/packages/names" >"$SCRATCH/records" 2>/dev/null
  placed_merge "$SCRATCH/records" && rm -rf "$STATE/packages"
}

# settle_transaction: finishes a transaction that an earlier run started and did not wait for. What it installed is recorded;
# $SCRATCH/said.PART is what was repaired after a killed one. dpkg is repaired before its next use.
settle_transaction() {
  [ -f "$STATE/packages/request" ] || return 0
  IFS=' ' read -r settle_part settle_family settle_verb settle_names <"$STATE/packages/request"
  ! is_transaction_running || say "$settle_part: waiting for the package manager, which an earlier run started ($settle_verb $settle_names)"
  await_transaction "$settle_part" 3 || ! is_transaction_running || return 1
  no_error
  settle_again=
  if [ ! -s "$STATE/packages/status" ]; then
    sh "$HERE/lib/transaction.sh" "$STATE/packages" "$settle_family" resolve 9>&-
    say "$settle_part: the package manager was killed before it finished, during an earlier run ($settle_verb $settle_names)"
    [ "$VERB:$settle_verb:$settle_family" != apply:install:rhel ] || settle_again=$(cut -f 1 "$STATE/packages/names")
  fi
  record_transaction "$settle_part" || return 1
  [ -n "$settle_again" ] || return 0
  # shellcheck disable=SC2086 # names of packages have no spaces
  if transact "$settle_part" rhel reinstall $settle_again; then
    settle_said="rpm had been interrupted; it was repaired by dnf reinstall"
  elif is_transaction_running; then
    return 1
  else
    settle_said="rpm had been interrupted, and dnf reinstall failed: $(tail -n 1 "$STATE/packages/stderr")"
  fi
  printf '%s %s\n' "$settle_said" "$(echo "$settle_again" | tr '\n' ' ')" | sed 's/ $//' >"$SCRATCH/said.$settle_part"
  no_error
  rm -rf "$STATE/packages"
}

# drop_packages PART: removes the packages that the part installed, in one transaction since they need each other; packages that are
# needed by others by now are kept, which is reported. Only when the host is removed: a change of exporter is no reason to remove a
# container runtime.
drop_packages() {
  placed_of "$1" package >"$SCRATCH/installed"
  [ -s "$SCRATCH/installed" ] || return 0
  drop_family=$(package_family)
  drop_manual=
  [ "$drop_family" != debian ] || drop_manual=$(apt-mark showmanual 2>/dev/null | tr '\n' ' ')
  records "$1" package
  drop_asked=$RECORDS
  while IFS=$TAB read -r _ drop_name _ drop_how _; do
    is_present "$drop_family" "$drop_name" || continue
    # Installed as a dependency, and named by somebody since.
    if [ "$drop_asked" != /dev/null ] && is_among "$drop_name" "$drop_manual" && ! grep -q "$TAB$drop_name\$" "$drop_asked"; then
      echo "package $drop_name: kept, because somebody installed it explicitly" >>"$SCRATCH/changes"
      continue
    fi
    [ "$drop_how" != remove ] || drop_name=$drop_name/remove
    echo "$drop_name"
  done <"$SCRATCH/installed" >"$SCRATCH/dropping"
  sed 's,/remove$,,' "$SCRATCH/dropping" >"$SCRATCH/packages"
  [ -s "$SCRATCH/packages" ] || return 0
  drop_why=$(packages_in_use "$1")
  # shellcheck disable=SC2046 # names of packages have no spaces
  [ -n "$drop_why" ] || drop_why=$(adopted_by_others "$drop_family" $(cat "$SCRATCH/packages"))
  # shellcheck disable=SC2046
  if [ -z "$drop_why" ] && ! can_purge "$drop_family" $(cat "$SCRATCH/packages"); then
    drop_why="other packages need it"
  fi
  if [ -z "$drop_why" ]; then
    say "$1: removing packages: $(tr '\n' ' ' <"$SCRATCH/packages")"
    # shellcheck disable=SC2046
    stop_services "$drop_family" $(cat "$SCRATCH/packages")
    # shellcheck disable=SC2046
    if ! transact "$1" "$drop_family" purge $(cat "$SCRATCH/dropping"); then
      ! is_transaction_running || return 1
      drop_why="it could not be removed: $(tail -n 1 "$STATE/packages/stderr" 2>/dev/null)"
    fi
    no_error
    rm -rf "$STATE/packages"
  fi
  WHY=$drop_why awk '{ print "package " $0 ": " (ENVIRON["WHY"] == "" ? "removed" : "kept, because " ENVIRON["WHY"]) }' \
    "$SCRATCH/packages" >>"$SCRATCH/changes"
}

# packages_in_use PART: prints what uses them, or nothing. The part's own script finds out; when it fails they are kept.
packages_in_use() {
  records "$1" keep
  while IFS= read -r keep_script; do
    within 60 sh "$HERE/files$keep_script" "$1" 2>/dev/null </dev/null || echo "it is unknown what else uses it"
  done <"$RECORDS"
}

# adopted_by_others FAMILY NAME...: prints the first sign that somebody else runs or configures what these packages contain, or nothing:
# a removal would stop their unit of the same name, and delete their configuration.
adopted_by_others() {
  adopted_family=$1
  shift
  list_services "$adopted_family" "$@"
  while IFS= read -r adopted_unit; do
    for adopted_file in "/etc/systemd/system/$adopted_unit" "/run/systemd/system/$adopted_unit" "/usr/local/lib/systemd/system/$adopted_unit" \
      "/etc/systemd/system/$adopted_unit.d"/*.conf; do
      if [ -f "$adopted_file" ] && [ ! -L "$adopted_file" ] && ! has_our_name "$adopted_file"; then
        echo "$adopted_file, which is not ours, runs or changes the same service"
        return
      fi
    done
  done <"$SCRATCH/services"
  case $adopted_family in
    debian)
      dpkg-query --show --showformat '${Conffiles}\n' "$@" 2>/dev/null | while read -r adopted_file adopted_sum _; do
        # newconffile: its package was never configured, so whatever is there is not the package's.
        [ -f "$adopted_file" ] || continue
        [ "$(md5sum <"$adopted_file" | cut -d ' ' -f 1)" = "$adopted_sum" ] || echo "$adopted_file is not as the package has it"
      done | head -n 1
      ;;
    rhel) rpm --verify "$@" 2>/dev/null | awk '$1 ~ /5/ && $2 == "c" { print $3 " is not as the package has it"; exit }' ;;
  esac
}

# list_services FAMILY NAME...: $SCRATCH/services, the units of these packages.
list_services() {
  list_family=$1
  shift
  case $list_family in
    debian) dpkg-query --listfiles "$@" ;;
    rhel) rpm --query --list "$@" ;;
  esac 2>/dev/null | sed -n 's,^.*/systemd/system/\([^/@]*\.\(service\|socket\|timer\)\)$,\1,p' | sort -u >"$SCRATCH/services"
}

# stop_services FAMILY NAME...: stops the packages' services. Not all packages do that on removal: DCGM's host engine would keep
# running without its files.
stop_services() {
  list_services "$@"
  # shellcheck disable=SC2046 # names of units have no spaces
  [ ! -s "$SCRATCH/services" ] || systemctl --quiet disable --now $(cat "$SCRATCH/services") >/dev/null 2>&1 </dev/null || true
}

# can_purge FAMILY NAME...: does nothing else need them?
can_purge() {
  purge_family=$1
  shift
  case $purge_family in
    debian) dpkg --simulate --purge "$@" ;;
    rhel) rpm --erase --test "$@" ;;
    *) false ;;
  esac >/dev/null 2>&1 </dev/null
}
