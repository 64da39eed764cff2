# Probes: scripts of the bundle that look at the host before anything is changed and print facts.
# shellcheck shell=sh

PROBE_TIMEOUT_S=120 # nvidia-smi takes about a second per GPU when persistence mode is off

# run_probes: fills $SCRATCH/facts. Returns 1 with the error set, and the part in PROBED, when a fatal probe fails; the error of any
# other probe is kept in $SCRATCH/probe.PART until that part is applied.
run_probes() {
  while IFS= read -r PROBED; do
    records "$PROBED" probe
    while IFS=$TAB read -r probe_path probe_fatal; do
      allows "$PROBED" known || continue
      run_probe "$probe_path" && continue
      [ "$probe_fatal" = fatal ] && return 1
      printf '%s\t%s' "$FAIL_CODE" "$FAIL_MESSAGE" | tr '\n' ' ' >"$SCRATCH/probe.$PROBED"
      no_error
    done <"$RECORDS"
  done <"$SCRATCH/manifest/parts"
}

run_probe() {
  say "$PROBED: probing the host"
  # shellcheck disable=SC1091 # the environment file is made at run time
  (set -a && . "$SCRATCH/env" && TMPDIR=$SCRATCH && within "$PROBE_TIMEOUT_S" sh "$HERE/files$1") \
    >"$SCRATCH/probe.out" 2>"$SCRATCH/stderr" </dev/null 9>&-
  probe_code=$?
  case $probe_code in
    0) ;;
    10) probe_cause=no-driver ;;
    11) probe_cause=gpu-count ;;
    12) probe_cause=unsupported ;;
    13) probe_cause=download ;;
    14) probe_cause=old-driver ;;
    124 | 143) probe_cause=internal && echo "probe $1 timed out after $PROBE_TIMEOUT_S seconds" >"$SCRATCH/stderr" ;;
    *) probe_cause=internal ;;
  esac
  if [ "$probe_code" -ne 0 ]; then
    fail "$probe_cause" "$(grep -v '^ *$' "$SCRATCH/stderr" || echo "probe $1 exited with $probe_code and printed no reason")"
    return 1
  fi
  if grep -Eqv '^[A-Za-z_][A-Za-z0-9_]*=[^[:cntrl:]]*$' "$SCRATCH/probe.out"; then
    fail internal "$1 printed a line that is not NAME=value: $(grep -Ev '^[A-Za-z_][A-Za-z0-9_]*=[^[:cntrl:]]*$' "$SCRATCH/probe.out" | head -n 1)"
    return 1
  fi
  cat "$SCRATCH/probe.out" >>"$SCRATCH/facts"
  merge_settings
}
