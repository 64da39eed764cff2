# Signs of life. Whoever watches this run gives it up when it prints nothing for long (provider/host.py, IDLE_S).
# shellcheck shell=sh

# with_heartbeat WHAT COMMAND...: prints a line each minute while the command runs, for two hours at most: one that runs longer is
# taken for dead.
with_heartbeat() {
  beat_what=$1
  shift
  (
    trap 'kill "$beat_nap" 2>/dev/null; exit 0' TERM
    beat_s=0
    while [ "$beat_s" -lt 7200 ] && kill -0 "$$" 2>/dev/null; do
      sleep 60 >/dev/null 2>&1 &
      beat_nap=$!
      wait "$beat_nap"
      beat_s=$((beat_s + 60))
      say "$beat_what, since $beat_s seconds"
    done
  ) 9>&- &
  beat_pid=$!
  "$@"
  beat_status=$?
  kill "$beat_pid" 2>/dev/null
  wait "$beat_pid" 2>/dev/null
  return "$beat_status"
}
