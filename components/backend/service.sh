#!/bin/sh
# Starts or stops one process of the embedded backend (Mimir, Loki, the alert receiver, Grafana) for Backend in backend.py.
#
#   service.sh start NAME    starts it, or restarts it when its definition changed; waits until it is ready
#   service.sh stop NAME     stops it and removes its directory, including its data
#   service.sh revive        restarts every service that was started here and is no longer running (after a reboot or a kill)
#
# supervisord would restart them by itself, but it checks neither readiness nor ports in use, and it would be one more process that four
# resources have to start, find and stop at the same time: no less code than this.
#
# Input is the environment, set by the Command resource: SERVICE_DIR (directory of this stack's services), SERVICE_COMMAND
# (one command line, run by sh), SERVICE_READY (URL that returns 200 when ready), SERVICE_LISTEN (each host:port it will bind),
# and whatever SERVICE_COMMAND itself reads; SERVICE_ENV has the names to pass on. `start` stores all of it in
# SERVICE_DIR/NAME/definition (0600), which `revive` reads: a dead process can be restarted without changing a resource.
set -eu
umask 077

verb=${1:?start, stop or revive}
: "${SERVICE_DIR:?the directory of the services}"
name=${2:-}
mkdir -p "$SERVICE_DIR"
SERVICE_DIR=$(CDPATH='' cd "$SERVICE_DIR" && pwd) # the programs need absolute paths
export SERVICE_DIR
ready_within_s=90 # measured: Mimir alone 12 s, 45 s on a machine that was compiling at the same time

say() { printf 'backend: %s\n' "$*" >&2; }

# The start time of a process distinguishes it from a later one with the same pid; a zombie counts as ended.
started_at() { awk '{ sub(/.*\) /, ""); if ($1 != "Z") print $20 }' "/proc/$1/stat" 2>/dev/null || true; }

running_pid() { # prints the pid when the process we started is alive
  [ -s "$1/pid" ] || return 1
  read -r pid since <"$1/pid"
  [ -n "$since" ] && [ "$(started_at "$pid")" = "$since" ] && echo "$pid"
}

definition() {
  for variable in SERVICE_COMMAND SERVICE_READY SERVICE_LISTEN SERVICE_ENV ${SERVICE_ENV:-}; do
    eval "value=\${$variable:-}"
    # shellcheck disable=SC2154  # set by the eval above
    printf "%s='%s'\nexport %s\n" "$variable" "$(printf '%s' "$value" | sed "s/'/'\\\\''/g")" "$variable"
  done
}

listener_taken() { # prints each host:port already in use, to report it instead of the program's stack trace
  for address in ${SERVICE_LISTEN:-}; do
    refused=0
    curl -q -s --noproxy '*' -o /dev/null --max-time 1 "telnet://$address" </dev/null 2>/dev/null || refused=$?
    [ "$refused" -eq 7 ] || echo "$address" # 7: connection refused
  done
}

last_lines() { tail -n 8 "$1/log" | cut -c 1-400 >&2; }

launch() {
  dir=$1
  taken=$(listener_taken)
  if [ -n "$taken" ]; then
    say "$(basename "$dir") cannot start: another program already listens on $(echo "$taken" | tr '\n' ' ')- stop it, or change the port under gpu-fleet:backend in the stack file"
    return 1
  fi
  interrupted=
  trap 'interrupted=yes' HUP INT TERM # until the process is on record
  setsid sh -c "exec $SERVICE_COMMAND" >"$dir/log" 2>&1 </dev/null &
  pid=$!
  echo "$pid $(started_at "$pid")" >"$dir/pid"
  [ -z "$interrupted" ] || { halt "$dir"; exit 143; }
  await_ready "$dir"
}

# A process that does not become ready is stopped: the engine records no resource for it, so no later run would stop it.
await_ready() {
  dir=$1
  trap 'halt "$dir"; exit 143' HUP INT TERM
  deadline=$(($(date +%s) + ready_within_s))
  until curl -q -sf --noproxy '*' -o /dev/null --max-time 2 "$SERVICE_READY"; do
    failure=
    if ! running_pid "$dir" >/dev/null; then
      failure="exited while starting"
    elif [ "$(date +%s)" -ge "$deadline" ]; then
      failure="was not ready after $ready_within_s s ($SERVICE_READY) and was stopped"
    fi
    if [ -n "$failure" ]; then
      halt "$dir"
      say "$(basename "$dir") $failure; its last lines (full log: $dir/log):"
      last_lines "$dir"
      return 1
    fi
    sleep 0.5
  done
  trap - HUP INT TERM
  say "$(basename "$dir") is ready (pid $(running_pid "$dir"))"
}

halt() {
  dir=$1
  pid=$(running_pid "$dir") || { rm -f "$dir/pid"; return 0; }
  kill -- "-$pid" 2>/dev/null || true # the whole process group: setsid made it the leader
  waited=0
  while running_pid "$dir" >/dev/null; do
    # Mimir flushes its head block on SIGTERM; after 20 s there is no point in waiting longer.
    if [ "$waited" -ge 40 ]; then kill -9 -- "-$pid" 2>/dev/null || true; fi
    waited=$((waited + 1))
    sleep 0.5
  done
  rm -f "$dir/pid"
}

case $verb in
start)
  : "${name:?which service}" "${SERVICE_COMMAND:?}" "${SERVICE_READY:?}"
  dir=$SERVICE_DIR/$name
  mkdir -p "$dir/data"
  definition >"$dir/definition.new"
  if running_pid "$dir" >/dev/null && cmp -s "$dir/definition.new" "$dir/definition"; then
    rm "$dir/definition.new"
    await_ready "$dir" # it may be left by a run that was killed while waiting
    exit
  fi
  halt "$dir"
  mv "$dir/definition.new" "$dir/definition"
  launch "$dir"
  ;;
stop)
  : "${name:?which service}"
  [ -d "$SERVICE_DIR/$name" ] || exit 0
  halt "$SERVICE_DIR/$name"
  rm -rf "${SERVICE_DIR:?}/$name"
  rmdir "$SERVICE_DIR" 2>/dev/null || true
  ;;
revive)
  failed=0
  for dir in "$SERVICE_DIR"/*/; do
    [ -f "$dir/definition" ] || continue
    running_pid "$dir" >/dev/null && begin=await_ready || begin=launch
    [ "$begin" = await_ready ] || say "$(basename "$dir") is not running: restarting it"
    # shellcheck source=/dev/null
    (. "$dir/definition" && "$begin" "${dir%/}") || failed=1
  done
  exit $failed
  ;;
*)
  say "unknown verb $verb"
  exit 2
  ;;
esac
