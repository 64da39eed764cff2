# Services under supervisord, for containers without systemd and for hosts below a prefix. See services.sh.
# shellcheck shell=sh

SUPERVISOR_CONFIG=/etc/gpu-fleet/supervisord.conf
SUPERVISOR_RUN=/run/gpu-fleet

# find_supervisord: sets SUPERVISORD and SUPERVISORCTL.
find_supervisord() {
  setting GPU_FLEET_SUPERVISORD
  SUPERVISORD=${VALUE:-$(command -v supervisord)}
  SUPERVISORCTL=${SUPERVISORD%/*}/supervisorctl
  [ -n "$SUPERVISORD" ] && [ -x "$SUPERVISORD" ] && [ -x "$SUPERVISORCTL" ]
}

# The socket is addressed through /proc/self/cwd, since its full path could exceed the limit of 107 bytes; so both programs have to be
# started in its directory.
supervisorctl() {
  (cd "$PREFIX$SUPERVISOR_RUN" && GPU_FLEET_PREFIX=$PREFIX exec "$SUPERVISORCTL" -c "$PREFIX$SUPERVISOR_CONFIG" "$@") </dev/null 2>&1 8>&- 9>&-
}

supervisor_missing() {
  DIFF=
  if ! find_supervisord; then
    DIFF="is not installed"
    return 0
  fi
  supervisor_status
  if [ "$SUPERVISOR_ANSWERS" = no ]; then
    DIFF="is not running"
  elif does_supervisor_change; then
    DIFF="to be restarted, because its configuration changed"
  fi
}

does_supervisor_change() {
  awk -F "$TAB" -v path="$SUPERVISOR_CONFIG" '$1 == "file" && $2 == path { found = 1 } END { exit !found }' "$SCRATCH/actions"
}

# supervisor_status: $SCRATCH/status, one line per program.
supervisor_status() {
  SUPERVISOR_ANSWERS=no
  : >"$SCRATCH/status"
  [ -S "$PREFIX$SUPERVISOR_RUN/supervisor.sock" ] && find_supervisord || return 0
  states_by_curl || supervisorctl status >"$SCRATCH/status"
  # 3: some program is not running. 4: no answer.
  case $? in
    0 | 3) SUPERVISOR_ANSWERS=yes ;;
    *) : >"$SCRATCH/status" ;;
  esac
}

# states_by_curl: what every run queries at least once, without the Python that each supervisorctl starts: 0.01 instead of 0.14 s of CPU
# time. Returns 1 where there is no curl, or one before 7.40, which knows no --unix-socket, and where supervisord does not answer.
states_by_curl() {
  command -v curl >/dev/null || return 1
  (cd "$PREFIX$SUPERVISOR_RUN" && exec curl -fs --noproxy '*' --max-time 10 --unix-socket supervisor.sock -H 'Content-Type: text/xml' \
    -d '<methodCall><methodName>supervisor.getAllProcessInfo</methodName></methodCall>' http://localhost/RPC2) \
    >"$SCRATCH/states" </dev/null 2>/dev/null 8>&- 9>&- && ! grep -q '<fault>' "$SCRATCH/states" || return 1
  awk -F '[<>]' '
    $2 == "name" { key = $3 }
    $4 == "string" && key == "name" { name = $5 }
    $4 == "string" && key == "statename" { print name, $5 }' "$SCRATCH/states" >"$SCRATCH/status"
}

supervisor_prepare() {
  if ! find_supervisord; then
    fail unsupported "this host has neither systemd nor supervisord (looked for ${SUPERVISORD:-supervisord on the PATH}); install the supervisor package, or set the path of the program (supervisord of the host)"
    return 1
  fi
  stop_supervisord
  rm -f "$PREFIX$SUPERVISOR_RUN/supervisor.sock"
  attempt "supervisord did not start" start_supervisord || return 1
  MANAGER_STARTED=yes
  prepare_tries=50
  while supervisor_status && [ "$SUPERVISOR_ANSWERS" = no ]; do
    prepare_tries=$((prepare_tries - 1))
    if [ "$prepare_tries" -eq 0 ]; then
      tail -n 20 "$PREFIX/var/log/gpu-fleet/supervisord.log" >"$SCRATCH/log" 2>/dev/null
      fail service-failed "supervisord was started but does not respond"
      return 1
    fi
    pause
  done
}

start_supervisord() {
  # A clean environment: programs get their values only from the environment file.
  (cd "$PREFIX$SUPERVISOR_RUN" && exec env -i PATH="$PATH" HOME=/ GPU_FLEET_PREFIX="$PREFIX" "$SUPERVISORD" -c "$PREFIX$SUPERVISOR_CONFIG") \
    >/dev/null 8>&- 9>&-
}

# stop_supervisord: by a signal, since its configuration may be missing or broken; it stops its programs first.
stop_supervisord() {
  stop_pid=$(cat "$PREFIX$SUPERVISOR_RUN/supervisord.pid" 2>/dev/null)
  if [ -n "$stop_pid" ] && is_of_prefix "$stop_pid" && kill "$stop_pid" 2>/dev/null; then
    stop_tries=150 # programs get 10 s to end
    while is_of_prefix "$stop_pid" && [ "$stop_tries" -gt 0 ]; do
      stop_tries=$((stop_tries - 1))
      pause
    done
  fi
  stop_orphans
}

# is_of_prefix PID: did we start it? If so, $SCRATCH/environment has its environment.
is_of_prefix() {
  { tr '\0' '\n' <"/proc/$1/environ" >"$SCRATCH/environment"; } 2>/dev/null && grep -qxF "GPU_FLEET_PREFIX=$PREFIX" "$SCRATCH/environment"
}

# stop_orphans: programs of a supervisord that was killed keep running and keep their ports. Their environment has supervisord's
# variables and our prefix, so no other process is signalled.
stop_orphans() {
  orphan_tries=50
  for orphan_signal in TERM KILL; do
    while signal_orphans "$orphan_signal" && [ "$orphan_tries" -gt 0 ]; do
      orphan_tries=$((orphan_tries - 1))
      pause
    done
  done
}

# signal_orphans SIGNAL: returns 1 when none are left.
signal_orphans() {
  orphan_found=1
  # shellcheck disable=SC2013 # the paths hold no spaces
  for orphan in $(grep -lsF "GPU_FLEET_PREFIX=$PREFIX" /proc/[0-9]*/environ); do
    orphan=${orphan#/proc/}
    orphan=${orphan%/environ}
    is_of_prefix "$orphan" || continue
    grep -q '^SUPERVISOR_PROCESS_NAME=' "$SCRATCH/environment" || continue
    kill -s "$1" "$orphan" 2>/dev/null && orphan_found=0
  done
  return "$orphan_found"
}

supervisor_definitions() {
  # Reports a broken file in supervisor.d here, instead of when some other program is started.
  definitions_said=$(supervisorctl reread)
  case $definitions_said in
    *ERROR*)
      fail service-failed "supervisord did not read the unit files: $definitions_said"
      return 1
      ;;
  esac
  for definitions_gone in $(printf '%s\n' "$definitions_said" | sed -n 's/: disappeared$//p'); do
    supervisorctl stop "$definitions_gone" >/dev/null
    supervisorctl remove "$definitions_gone" >/dev/null
  done
}

supervisor_difference() {
  DIFF=
  supervisor_program "$1" # from the status read last
  case $PROGRAM_STATE in
    RUNNING | STARTING) ;;
    '') if placed_get unit "$1"; then DIFF="is not running"; else DIFF="is not set up"; fi ;;
    *) DIFF="is not running ($(printf '%s' "$PROGRAM_STATE" | tr '[:upper:]' '[:lower:]'))" ;;
  esac
}

supervisor_is_running() {
  supervisor_program "$1"
  case $PROGRAM_STATE in
    RUNNING | STARTING) ;;
    *) return 1 ;;
  esac
}

supervisor_program() {
  PROGRAM_STATE=$(awk -v name="$1" '$1 == name { print $2 }' "$SCRATCH/status")
}

# `update` adds a new program, and restarts a program whose file changed; it leaves others alone.
supervisor_start() {
  case $(supervisorctl update "$1") in
    *"$1: "*) JUST_STARTED=yes ;;
    *) supervisorctl start "$1" >/dev/null ;;
  esac
  return 0 # is_steady checks the result
}

supervisor_restart() {
  case $(supervisorctl update "$1") in
    *"$1: "*) JUST_STARTED=yes ;;
    *) supervisorctl restart "$1" >/dev/null ;;
  esac
  return 0
}

supervisor_reload() {
  supervisorctl update "$1" >/dev/null
  supervisor_status
  supervisor_program "$1"
  reload_program=$PREFIX/opt/gpu-fleet/libexec/start-reload-${1#gpu-fleet-}
  if [ "$PROGRAM_STATE" = RUNNING ] && [ -x "$reload_program" ]; then
    GPU_FLEET_PREFIX=$PREFIX "${reload_program%/*}/run" "reload-${1#gpu-fleet-}" >"$SCRATCH/log" 2>&1 </dev/null 9>&- && return
    fail service-failed "service $1 did not accept its new configuration"
    return
  elif [ "$PROGRAM_STATE" = RUNNING ]; then
    supervisorctl signal HUP "$1" >/dev/null
  else
    supervisorctl start "$1" >/dev/null
  fi
  return 0
}

supervisor_stop() {
  if [ -S "$PREFIX$SUPERVISOR_RUN/supervisor.sock" ] && find_supervisord; then
    case $(supervisorctl stop "$1") in
      *"$1: "*) return 0 ;;
    esac
  fi
  stop_orphans # supervisord does not answer
  return 0
}

# supervisord reports a program as RUNNING only after it has run for a second, and each query takes a tenth of a second of CPU time.
# `update` does not wait for that second, as `start` and `restart` do, so the first query would be for nothing.
supervisor_is_steady() {
  [ "${JUST_STARTED:-no}" = no ] || sleep 1
  JUST_STARTED=no
  supervisor_status
  supervisor_program "$1"
  if [ "$PROGRAM_STATE" = STARTING ]; then
    sleep 1
    supervisor_status
    supervisor_program "$1"
  fi
  [ "$PROGRAM_STATE" != FATAL ] || GAVE_UP=yes
  [ "$PROGRAM_STATE" = RUNNING ]
}

supervisor_leave() {
  stop_supervisord
}

supervisor_log() {
  supervisorctl tail -4000 "$1" | grep -v '^$' | tail -n 20
}

supervisor_end() {
  END_STATUS='' END_WORDS=$(supervisor_log "$1" | tail -n 1)
}

supervisor_override_directories() {
  :
}
