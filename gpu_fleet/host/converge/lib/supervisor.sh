# Services under supervisord, for containers without systemd and for hosts below a prefix. See services.sh.
# shellcheck shell=sh

SUPERVISOR_CONFIG=/etc/gpu-fleet/supervisord.conf
SUPERVISOR_RUN=/run/gpu-fleet
DEFINITIONS=unread
RUNS='' RESTARTS=0 # of the programs that this wait has looked at, UNIT:PID

# find_supervisord: sets SUPERVISORD and SUPERVISORCTL.
find_supervisord() {
  setting GPU_FLEET_SUPERVISORD
  SUPERVISORD=${VALUE:-$(command -v supervisord)}
  SUPERVISORCTL=${SUPERVISORD%/*}/supervisorctl
  [ -n "$SUPERVISORD" ] && [ -x "$SUPERVISORD" ] && [ -x "$SUPERVISORCTL" ]
}

# The socket is addressed through /proc/self/cwd, since its full path could exceed the limit of 107 bytes; so all programs have to be
# started in its directory.
supervisorctl() {
  find_supervisord || return 1
  (cd "$PREFIX$SUPERVISOR_RUN" && GPU_FLEET_PREFIX=$PREFIX exec "$SUPERVISORCTL" -c "$PREFIX$SUPERVISOR_CONFIG" "$@") </dev/null 2>&1 8>&- 9>&-
}

# ask_supervisord METHOD [PARAMETER]: calls a method of supervisord by XML-RPC, as supervisorctl does, but without the Python that each
# supervisorctl starts: 0.01 instead of 0.15 s of CPU time. Its answer is in $SCRATCH/answer. Returns 1 where supervisord does not answer,
# and where there is no curl, or one before 7.40, which knows no --unix-socket: then supervisorctl is tried.
ask_supervisord() {
  # The longest that a program of ours takes to stop is 70 s.
  (cd "$PREFIX$SUPERVISOR_RUN" && exec curl -q -fs --noproxy '*' --max-time 120 --unix-socket supervisor.sock -H 'Content-Type: text/xml' \
    -d "<methodCall><methodName>$1</methodName><params>${2:+<param><value>$2</value></param>}</params></methodCall>" http://localhost/RPC2) \
    >"$SCRATCH/answer" </dev/null 2>/dev/null 8>&- 9>&- || return 1
}

# read_answer AWK: runs it for each `tag` of the answer, with the `text` after it and the `member` of a structure that it belongs to. In
# the text, &, < and > are still escaped, so names can be sent back as they are.
read_answer() {
  awk 'BEGIN { RS = "<" }
    { at = index($0, ">"); tag = substr($0, 1, at - 1); text = substr($0, at + 1) }
    tag == "name" { member = text }'"$1" "$SCRATCH/answer"
}

# supervise PROGRAM VERB...: in one request, one after the other: start or stop, which wait for their end, add, remove, "signal HUP".
# Returns 1 where supervisord does not answer.
supervise() {
  supervise_program=$1
  shift
  supervise_calls=
  for supervise_verb; do
    supervise_more=
    case $supervise_verb in
      start | stop) supervise_method=${supervise_verb}Process ;;
      add | remove) supervise_method=${supervise_verb}ProcessGroup ;;
      signal*) supervise_method=signalProcess supervise_more="<value>${supervise_verb#* }</value>" ;;
    esac
    supervise_calls="$supervise_calls<value><struct>\
<member><name>methodName</name><value>supervisor.$supervise_method</value></member>\
<member><name>params</name><value><array><data><value>$supervise_program</value>$supervise_more</data></array></value></member>\
</struct></value>"
  done
  ask_supervisord system.multicall "<array><data>$supervise_calls</data></array>" && return 0
  for supervise_verb; do
    # shellcheck disable=SC2086 # `signal HUP` is two arguments
    supervise_said=$(supervisorctl $supervise_verb "$supervise_program")
  done
  case $supervise_said in
    *"$supervise_program: "*) ;;
    *) return 1 ;;
  esac
}

supervisor_missing() {
  DIFF=
  supervisor_status
  if ! find_supervisord; then
    DIFF="is not installed"
  elif [ "$SUPERVISOR_ANSWERS" = no ]; then
    DIFF="is not running"
  elif does_supervisor_change; then
    DIFF="to be restarted, because its configuration changed"
  fi
}

does_supervisor_change() {
  awk -F "$TAB" -v path="$SUPERVISOR_CONFIG" '$1 == "file" && $2 == path { found = 1 } END { exit !found }' "$SCRATCH/actions"
}

# supervisor_status: $SCRATCH/status, a line NAME STATE PID LOG per program; without LOG where supervisorctl was asked.
supervisor_status() {
  SUPERVISOR_ANSWERS=no
  : >"$SCRATCH/status"
  [ -S "$PREFIX$SUPERVISOR_RUN/supervisor.sock" ] || return 0
  if ask_supervisord supervisor.getAllProcessInfo && read_answer '
    tag == "fault" { exit 1 }
    tag == "string" || tag == "int" { value[member] = text }
    tag == "/struct" { print value["name"], value["statename"], value["pid"], value["stdout_logfile"] }' >"$SCRATCH/status"; then
    SUPERVISOR_ANSWERS=yes
    return
  fi
  supervisorctl status >"$SCRATCH/answer"
  # 3: some program is not running. 4: no answer.
  case $? in
    0 | 3)
      SUPERVISOR_ANSWERS=yes
      awk '{ print $1, $2, $2 == "RUNNING" ? $4 + 0 : 0 }' "$SCRATCH/answer" >"$SCRATCH/status" # NAME RUNNING pid 1234, uptime 0:00:05
      ;;
  esac
}

supervisor_prepare() {
  if ! find_supervisord; then
    fail unsupported "this host has neither systemd nor supervisord (looked for ${SUPERVISORD:-supervisord on the PATH}); install the supervisor package, or set the path of the program (supervisord of the host)"
    return 1
  fi
  stop_supervisord
  rm -f "$PREFIX$SUPERVISOR_RUN/supervisor.sock"
  attempt "supervisord did not start" start_supervisord || return 1
  DEFINITIONS=unread
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
  reread
  case $DEFINITIONS in
    *ERROR*)
      fail service-failed "supervisord did not read the unit files: $DEFINITIONS"
      return 1
      ;;
  esac
  for definitions_gone in $(printf '%s\n' "$DEFINITIONS" | sed -n 's/: disappeared$//p'); do
    supervise "$definitions_gone" stop remove
  done
}

# reread: makes supervisord read its configuration. DEFINITIONS is what it found, in supervisorctl's words: "PROGRAM: available" (a new
# one), changed or disappeared; or "ERROR: ...".
reread() {
  if ask_supervisord supervisor.reloadConfig; then
    # The answer is the lists of what is new, changed and gone, in a list in a list.
    DEFINITIONS=$(read_answer '
      tag == "array" { list++ }
      tag == "string" && member == "faultString" {
        gsub(/&lt;/, "<", text)
        gsub(/&gt;/, ">", text)
        gsub(/&amp;/, "\\&", text)
        print "ERROR: " text
      }
      tag == "string" && list > 2 { print text (list == 3 ? ": available" : list == 4 ? ": changed" : ": disappeared") }')
  else
    DEFINITIONS=$(supervisorctl reread)
  fi
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

# supervisor_program NAME: sets PROGRAM_STATE, _PID and _LOG from the status read last, empty where there is no such program.
supervisor_program() {
  while read -r program_name PROGRAM_STATE PROGRAM_PID PROGRAM_LOG; do
    [ "$program_name" != "$1" ] || return 0
  done <"$SCRATCH/status"
  PROGRAM_STATE='' PROGRAM_PID='' PROGRAM_LOG=''
}

# update_program NAME: starts a new program, and restarts one whose file changed. Returns 1 where it is neither.
update_program() {
  [ "$DEFINITIONS" != unread ] || reread
  case $(printf '%s\n' "$DEFINITIONS" | sed -n "s/^$1: //p") in
    available) supervise "$1" add ;;
    changed) supervise "$1" stop remove add ;;
    *) return 1 ;;
  esac
  JUST_STARTED=yes
}

supervisor_enable() {
  :
}

supervisor_start() {
  update_program "$1" || supervise "$1" start
  return 0 # is_steady checks the result
}

supervisor_restart() {
  update_program "$1" || supervise "$1" stop start
  return 0
}

supervisor_reload() {
  update_program "$1"
  supervisor_status
  supervisor_program "$1"
  reload_program=$PREFIX/opt/gpu-fleet/libexec/start-reload-${1#gpu-fleet-}
  if [ "$PROGRAM_STATE" = RUNNING ] && [ -x "$reload_program" ]; then
    GPU_FLEET_PREFIX=$PREFIX "${reload_program%/*}/run" "reload-${1#gpu-fleet-}" >"$SCRATCH/log" 2>&1 </dev/null 9>&- && return
    fail service-failed "service $1 did not accept its new configuration"
    return
  elif [ "$PROGRAM_STATE" = RUNNING ]; then
    supervise "$1" "signal HUP"
  else
    supervise "$1" start
  fi
  return 0
}

supervisor_stop() {
  if [ -S "$PREFIX$SUPERVISOR_RUN/supervisor.sock" ] && supervise "$1" stop; then
    return 0
  fi
  stop_orphans # supervisord does not answer
  return 0
}

# supervisord reports a program as RUNNING only after it has run for a second. update_program does not wait for that, as `start` does, so
# the first query would be for nothing.
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
  [ "$PROGRAM_STATE" = RUNNING ] && is_same_process "$1"
}

# is_same_process NAME: as the last time that this wait looked? supervisord does not count the restarts of a program that dies after its
# first second, and starts it again for ever.
is_same_process() {
  case $RUNS in
    *" $1:$PROGRAM_PID "*) return 0 ;;
    *" $1:"*) ;;
    *)
      RUNS="$RUNS $1:$PROGRAM_PID "
      return 0
      ;;
  esac
  RUNS="$RUNS $1:$PROGRAM_PID "
  RESTARTS=$((RESTARTS + 1))
  [ "$RESTARTS" -lt "$MOST_RESTARTS" ] || GAVE_UP=yes
  return 1
}

supervisor_leave() {
  stop_supervisord
}

supervisor_log() {
  supervisor_program "$1"
  if [ -f "$PROGRAM_LOG" ]; then tail -c 4000 "$PROGRAM_LOG"; else supervisorctl tail -4000 "$1"; fi | grep -v '^$' | tail -n 20
}

supervisor_end() {
  supervisor_program "$1"
  END_STATUS='' END_WORDS=$(if [ -f "$PROGRAM_LOG" ]; then tail -n 200 "$PROGRAM_LOG"; else supervisor_log "$1"; fi | last_words)
}

supervisor_override_directories() {
  :
}

supervisor_overrides() {
  :
}
