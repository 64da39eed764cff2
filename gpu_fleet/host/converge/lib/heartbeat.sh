# Signs of life. The provider gives up on a run that prints nothing for a long time (gpu_fleet/provider/host.py, IDLE_S).
# shellcheck shell=sh

# with_heartbeat WHAT COMMAND...: prints a line each minute while the command runs, for at most two hours: one that runs longer is
# considered dead, and the provider ends the run when it has been silent for `idleTimeout`. Not for package managers, which must not be
# ended: packages.sh waits for them.
with_heartbeat() {
  beat_what=$1
  shift
  (
    beat_s=0
    while [ "$beat_s" -lt 7200 ] && kill -0 "$$" 2>/dev/null; do
      sleep 5 >/dev/null 2>&1
      beat_s=$((beat_s + 5))
      [ "$((beat_s % 60))" -ne 0 ] || say "$beat_what, for $beat_s seconds"
    done
  ) 8>&- 9>&- &
  beat_pid=$!
  "$@"
  beat_status=$?
  # Not TERM: a subshell loses a signal that arrives between its start and the reset of its parent's traps, which on a busy host happens
  # after every quick command. The wait below would then last two hours.
  kill -s KILL "$beat_pid" 2>/dev/null
  wait "$beat_pid" 2>/dev/null
  return "$beat_status"
}
