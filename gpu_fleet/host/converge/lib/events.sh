# What this program prints: JSON lines on stdout for programs, sentences on stderr for people.
# shellcheck shell=sh

say() {
  printf '%s\n' "$*" >&2
}

# json MODE <lines: `list` gives ["line",...], `text` one string with \n between, `object` an object of NAME=value lines. Called only in
# subshells, $(json ...) or | json ..., which it replaces.
json() {
  exec awk -v mode="$1" -f "$HERE/lib/json.awk"
}

json_text() {
  printf '%s\n' "$1" | json text
}

# report_part PART STATUS: one line with the lists in $SCRATCH/changes and $SCRATCH/drift and, when FAIL_CODE is set, the error.
report_part() {
  report_line="{\"event\":\"part\",\"part\":\"$1\",\"status\":\"$2\""
  [ -s "$SCRATCH/changes" ] && report_line="$report_line,\"changes\":$(json list <"$SCRATCH/changes")"
  [ -s "$SCRATCH/drift" ] && report_line="$report_line,\"drift\":$(json list <"$SCRATCH/drift")"
  if [ -n "$FAIL_CODE" ]; then
    report_line="$report_line,\"error\":$(error_json)"
    say "$1: $FAIL_MESSAGE"
  fi
  printf '%s}\n' "$report_line"
  case $2 in
    changed | would-change | removed) COUNT_CHANGED=$((COUNT_CHANGED + 1)) ;;
    failed) COUNT_FAILED=$((COUNT_FAILED + 1)) ;;
    drift) COUNT_DRIFT=$((COUNT_DRIFT + 1)) ;;
  esac
  case $2 in
    unchanged | not-wanted | failed) ;;
    *) say "$1: $2" ;;
  esac
  forget_part
}

# Clears the lists and the error for the next part. CHANGING: the keys of $SCRATCH/actions, one per line. UNITS_CHANGE: does any of them
# change the definition of a unit?
forget_part() {
  CHANGING='' UNITS_CHANGE=no
  : >"$SCRATCH/changes"
  : >"$SCRATCH/drift"
  no_error
}

report_facts() {
  printf '{"event":"facts","facts":%s}\n' "$(json object <"$SCRATCH/facts")"
}

# finish: prints the result and exits with its exit code, or with $1.
finish() {
  write_metrics
  flush_changes
  finish_ok=true finish_code=0
  [ "$COUNT_DRIFT" -eq 0 ] || { finish_ok=false finish_code=4; }
  [ "$COUNT_FAILED" -eq 0 ] || { finish_ok=false finish_code=1; }
  printf '{"event":"result","verb":"%s","ok":%s,"changed":%d,"failed":%d,"drift":%d,"digest":"%s","settings_digest":"%s"}\n' \
    "$VERB" "$finish_ok" "$COUNT_CHANGED" "$COUNT_FAILED" "$COUNT_DRIFT" "${DIGEST:-}" "${SETTINGS_DIGEST:-}"
  exit "${1:-$finish_code}"
}
