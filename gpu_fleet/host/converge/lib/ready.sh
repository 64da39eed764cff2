# Does a part work? Its checks, and which process uses the port when it does not.
# shellcheck shell=sh

pause() {
  sleep 0.2 2>/dev/null || sleep 1
}

# read_uptime: sets UPTIME_S, seconds since this host booted. Unlike the wall clock, it never jumps: a clock that time synchronization
# corrects by an hour during an apply would end every wait at once.
read_uptime() {
  IFS=. read -r UPTIME_S _ </proc/uptime
}

# within SECONDS COMMAND...: stops it after that time, where this host has `timeout`.
within() {
  command -v timeout >/dev/null || shift
  case $1 in
    [0-9]*) timeout "$@" ;;
    *) "$@" ;;
  esac 9>&- # busybox leaves a process behind until the timeout, which must not hold our lock
}

# wait_ready PART: waits until all its units run steadily and all its checks pass; on a timeout sets the error.
wait_ready() {
  checks "$1"
  records "$1" unit
  [ "$RECORDS:$CHECKS" != /dev/null:/dev/null ] || return 0
  wait_longest=0
  while IFS=$TAB read -r _ wait_s _; do
    [ "$wait_s" -le "$wait_longest" ] || wait_longest=$wait_s
  done <"$CHECKS"
  [ "$wait_longest" -gt 0 ] || wait_longest=10
  read_uptime
  wait_until=$((UPTIME_S + wait_longest))
  say "$1: waiting until it is ready, at most $wait_longest seconds"
  GAVE_UP=no RUNS='' RESTARTS=0
  until are_steady && do_checks_pass_soon; do
    read_uptime
    [ "$UPTIME_S" -lt "$wait_until" ] || ! is_pulling || wait_until=$((UPTIME_S + wait_longest))
    if [ "$GAVE_UP" = yes ] || [ "$UPTIME_S" -ge "$wait_until" ]; then
      not_ready "$wait_longest"
      return 1
    fi
    pause
  done
}

# is_pulling: is one of its units still downloading what it will run? Its last line says so, and it has its own timeout. If the wait
# ended first, the download would start over with every run where the network is slow or shared by a whole fleet.
is_pulling() {
  while IFS=$TAB read -r pulling_unit _; do
    service end "$pulling_unit"
    case $END_WORDS in
      "pulling "*)
        say "$pulling_unit: still $END_WORDS"
        return 0
        ;;
    esac
  done <"$RECORDS"
  return 1
}

# are_steady <$RECORDS: sets UNSTEADY to the first unit that is not.
are_steady() {
  while IFS=$TAB read -r UNSTEADY steady_type; do
    service is_steady "$UNSTEADY" "$steady_type" || return 1
  done <"$RECORDS"
  UNSTEADY=
}

# checks PART: sets CHECKS to the file of its checks.
checks() {
  records "$1" check
  CHECKS=$RECORDS
}

# do_checks_pass: sets UNMET to the reason of the first check that fails.
do_checks_pass() {
  while IFS=$TAB read -r check_kind _ check_what check_fresh_s check_contains; do
    [ "$check_contains" != - ] || check_contains=''
    case $check_kind in
      http) expand "$check_what" && does_url_answer "$EXPANDED" "$check_contains" || return 1 ;;
      file) is_file_fresh "$check_what" "$check_fresh_s" "$check_contains" || return 1 ;;
      port) expand "$check_what" && is_listened_on "$EXPANDED" || return 1 ;;
    esac
  done <"$CHECKS"
  UNMET=
}

# do_checks_pass_soon: within two seconds. A service that is about to respond is asked itself, and not the service manager each time, which
# may have to be asked by supervisorctl: every one starts a Python, which takes a tenth of a second of CPU time.
do_checks_pass_soon() {
  read_uptime
  soon_until=$((UPTIME_S + 2))
  until do_checks_pass; do
    read_uptime
    [ "$UPTIME_S" -lt "$soon_until" ] || return 1
    pause
  done
}

does_url_answer() {
  UNMET="$1 does not respond"
  get_url "$1" >"$SCRATCH/body" 2>"$SCRATCH/stderr" </dev/null || return 1
  UNMET="$1 responds, but without $2"
  [ -z "$2" ] || grep -qF -e "$2" "$SCRATCH/body"
}

# is_listened_on HOST:PORT
is_listened_on() {
  UNMET="nothing listens on $1"
  port_inodes "${1##*:}"
}

# get_url URL: prints the response body, with whatever tool this host has: a minimal host has neither curl nor wget, but it has bash,
# which can open TCP connections.
get_url() {
  if command -v curl >/dev/null; then
    curl -q -fsS --noproxy '*' --max-time 5 "$1"
  elif command -v wget >/dev/null; then
    # Not with wget's own -T, with which some versions of busybox crash.
    http_proxy='' within 5 wget -q -O - "$1"
  else
    # shellcheck disable=SC2016 # bash expands it
    within 5 bash -c '
      url=${1#http://} && where=${url%%/*} && exec 3<>"/dev/tcp/${where%:*}/${where##*:}" &&
      printf "GET /%s HTTP/1.0\r\nHost: %s\r\n\r\n" "${url#*/}" "$where" >&3 &&
      read -r _ status _ <&3 && [ "$status" = 200 ] && cat <&3' bash "$1"
  fi
}

is_file_fresh() {
  UNMET="$PREFIX$1 is missing"
  [ -f "$PREFIX$1" ] || return 1
  fresh_age_s=$(($(date +%s) - $(stat -c %Y "$PREFIX$1")))
  UNMET="$PREFIX$1 was last written $fresh_age_s s ago, expected within $2 s"
  [ "$fresh_age_s" -lt "$2" ] || return 1
  { [ -n "$3" ] && ! grep -qF -e "$3" "$PREFIX$1"; } || return 0
  # The writer of the file may have added the reason.
  fresh_said=$(sed -n 's/^# says: //p' "$PREFIX$1" | head -n 1)
  UNMET="$PREFIX$1 does not contain $3${fresh_said:+: $fresh_said}"
  return 1
}

# not_ready SECONDS: sets the error, with the last lines of the log; a program's last words usually explain why it exited.
not_ready() {
  if [ -n "$UNSTEADY" ]; then
    ready_why="service $UNSTEADY does not keep running"
    last_words_of "$UNSTEADY"
  else
    ready_why="$UNMET (waited $1 s)"
    # A server that starts, reads its key and exits, over and over, has said why; so has the one-shot program that did not write a file.
    if IFS=$TAB read -r ready_unit _ <"$RECORDS"; then last_words_of "$ready_unit"; fi
  fi
  while IFS=$TAB read -r ready_unit _; do
    service log "$ready_unit"
  done <"$RECORDS" | tail -n 20 >"$SCRATCH/ready.log"
  ready_library=$(sed -n "s/.*version .\(GLIBC_[0-9.]*\). not found.*/\1/p" "$SCRATCH/ready.log" | tail -n 1)
  if [ -n "$ready_library" ]; then
    fail unsupported "the program of service $UNSTEADY was built for a newer system than this one, which has no $ready_library; use the upstream build (artifacts: upstream or mirror), or upgrade this host"
  else
    fail service-failed "$ready_why"
  fi
  [ -z "$UNSTEADY" ] || foreign_listener "$UNSTEADY" || true
  cp "$SCRATCH/ready.log" "$SCRATCH/log"
  # A program that exited because something could not be downloaded exits with 13, as probes do; its last line is the reason.
  [ -z "$UNSTEADY" ] || [ "$END_STATUS" != 13 ] || [ -z "$END_WORDS" ] || fail download "$END_WORDS"
}

# last_words_of UNIT: adds them to ready_why.
last_words_of() {
  service end "$1"
  case "$UNSTEADY $END_WORDS" in
    " "*level=[iI][nN][fF][oO]*) return 0 ;; # of a program that runs, and what went well
  esac
  case $ready_why in
    *"$END_WORDS"*) ;;
    *) ready_why="$ready_why: $(printf '%.300s' "$END_WORDS")" ;;
  esac
}

# free_ports PART: before a part's stopped services start, no other program may listen on the ports of its checks; otherwise that
# program's response would be taken for ours.
free_ports() {
  records "$1" unit
  while IFS=$TAB read -r free_unit free_type; do
    ! service is_running "$free_unit" "$free_type" || return 0 # it may hold the port itself
  done <"$RECORDS"
  checks "$1"
  free_tries=10 # a service that was just stopped may need a moment
  while foreign_listener; do
    free_tries=$((free_tries - 1))
    [ "$free_tries" -gt 0 ] || return 1
    no_error
    pause
  done
}

# foreign_listener [UNIT]: is the port of a check in use? Then sets the error. Called while our service does not run, or with a UNIT that
# dies and is started again, and may hold the port at this moment.
foreign_listener() {
  while IFS=$TAB read -r check_kind _ check_what _; do
    [ "$check_kind" != file ] || continue
    expand "$check_what"
    listener_port=${EXPANDED#http://}
    listener_port=${listener_port%%/*}
    case ${listener_port##*:} in
      "$listener_port" | '' | *[!0-9]*) continue ;;
    esac
    listener_port=${listener_port##*:}
    port_holder "$listener_port" || continue
    [ -z "${1:-}" ] || is_foreign "$listener_port" "$1" || continue
    fail port-taken "port $listener_port is in use by $HOLDER; stop it, or set another port (ports of the host); an existing exporter that serves the metrics of its kind can be adopted instead (adopt: true for the host)"
    return 0
  done <"$CHECKS"
  return 1
}

# port_inodes PORT: sets PORT_INODES to the sockets that listen on it, from the kernel's own table, since not every host has ss. Returns 1
# when there is none.
port_inodes() {
  port_hex=$(printf '%04X' "$1")
  # Columns: local address, remote address, state (0A is LISTEN), ..., inode of the socket.
  PORT_INODES=$(awk -v port=":$port_hex" '$4 == "0A" && substr($2, length($2) - 4) == port { print $10 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  [ -n "$PORT_INODES" ]
}

# is_foreign PORT UNIT: HOLDER is no process of UNIT, and no process that has ended since, as the unit's do again and again.
is_foreign() {
  [ -z "$HOLDER_PID" ] || ! is_process_of "$HOLDER_PID" "$2" || return 1
  foreign_inodes=$PORT_INODES
  pause
  port_inodes "$1" && [ "$PORT_INODES" = "$foreign_inodes" ]
}

# is_process_of PID UNIT, under systemd or supervisord.
is_process_of() {
  grep -qs "/$2\.service" "/proc/$1/cgroup" || { tr '\0' '\n' <"/proc/$1/environ" | grep -qx "SUPERVISOR_PROCESS_NAME=$2"; } 2>/dev/null
}

# port_holder PORT: sets HOLDER, and HOLDER_PID where it is known. Returns 1 when no process listens.
port_holder() {
  port_inodes "$1" || return 1
  HOLDER="a process of another user" HOLDER_PID=''
  for holder_inode in $PORT_INODES; do
    # shellcheck disable=SC2012 # one process for all descriptors; the names in /proc are numbers
    holder_pid=$(ls -l /proc/[0-9]*/fd 2>/dev/null | awk -v socket="socket:[$holder_inode]" '
      /^\/proc\// { split($0, at, "/"); pid = at[3] }
      $NF == socket { print pid; exit }')
    [ -n "$holder_pid" ] || continue
    HOLDER_PID=$holder_pid
    # Only the name: the arguments of another program may contain secrets.
    # Any user can give a program a name with control characters.
    HOLDER="process $holder_pid ($(tr -d '\n' 2>/dev/null <"/proc/$holder_pid/comm" | tr -c '[:print:]' '?'))"
    return 0
  done
}
