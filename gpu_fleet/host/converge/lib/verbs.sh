# The verbs of this program.
# shellcheck shell=sh

# verb_needs: the sha256 of each file that the controller has to send along.
verb_needs() {
  open_state
  read_manifest
  load_settings && run_probes && choose_manager || exit 0 # apply reports what is wrong
  choose_parts
  while IFS= read -r needs_part; do
    records "$needs_part" download
    while IFS=$TAB read -r needs_path needs_mode needs_arch needs_sum needs_member needs_url; do
      [ "$needs_arch:$needs_url" = "$ARCH:-" ] || continue
      download_difference "$needs_path" "$needs_mode" "$needs_sum" "$needs_member"
      case $DIFF in
        '' | "mode is "* | "owner is "*) ;;
        *) echo "$needs_sum" ;;
      esac
    done <"$RECORDS"
  done <"$SCRATCH/wanted" | sort -u
}

verb_plan() {
  open_state
  read_manifest
  look_at_host
  # shellcheck disable=SC2086 # names of parts
  survey $WANTED
  former_parts >"$SCRATCH/former"
  while IFS= read -r plan_part; do
    obsolete_differences "$plan_part"
    report_part "$plan_part" would-change
  done <"$SCRATCH/former"
  while IFS= read -r plan_part; do
    if [ -s "$SCRATCH/probe.$plan_part" ]; then
      report_probe_failure "$plan_part"
    elif is_wanted "$plan_part"; then
      part_difference "$plan_part" || { report_part "$plan_part" failed; continue; }
      printf '%s' "$CHANGING" >>"$SCRATCH/changed"
      if [ -s "$SCRATCH/changes" ]; then report_part "$plan_part" would-change; else report_part "$plan_part" unchanged; fi
    elif ! is_former "$plan_part"; then
      report_part "$plan_part" not-wanted
    fi
  done <"$SCRATCH/manifest/parts"
  finish
}

verb_apply() {
  [ -d "$STATE" ] || mkdir -p "$STATE" 2>/dev/null
  open_state
  read_manifest
  if [ ! -w "$STATE" ]; then
    fail no-write "cannot write below $STATE; run as root (sudo), or choose a writable prefix"
    refuse
  fi
  lock_state exclusive || refuse
  clear_scratch
  look_at_host
  record_bundle || { explain_state; refuse; }
  settle_transaction || { explain_state; refuse; }
  converge_and_report host
  if [ "$COUNT_FAILED" -gt 0 ]; then
    say "nothing else was tried: all parts depend on what failed"
    finish
  fi
  former_parts >"$SCRATCH/former"
  while IFS= read -r apply_part; do
    remove_part "$apply_part" || explain_state
    if [ -n "$FAIL_CODE" ]; then report_part "$apply_part" failed; else report_part "$apply_part" removed; fi
  done <"$SCRATCH/former"
  while IFS= read -r apply_part; do
    if [ "$apply_part" = host ]; then
      continue
    elif [ -s "$SCRATCH/probe.$apply_part" ]; then
      report_probe_failure "$apply_part"
    elif is_wanted "$apply_part"; then
      converge_and_report "$apply_part"
    elif ! is_former "$apply_part"; then
      report_part "$apply_part" not-wanted
    fi
  done <"$SCRATCH/manifest/parts"
  UNDO=$STATE/undo/host
  [ ! -d "$UNDO" ] || undo_end
  sweep_directories
  finish
}

converge_and_report() {
  if converge_part "$1"; then
    if [ -s "$SCRATCH/changes" ]; then report_part "$1" changed; else report_part "$1" unchanged; fi
  else
    explain_state
    report_part "$1" failed
  fi
}

verb_check() {
  leave_if_absent
  open_state
  if ! lock_state shared; then
    METRICS='' # the previous result stays valid until that run is done
    refuse
  fi
  restart_if_replaced
  read_manifest
  load_settings || refuse
  is_ours || refuse
  recall_host
  # shellcheck disable=SC2086 # names of parts
  survey $WANTED
  [ ! -d "$STATE/undo/host" ] || echo "the last apply did not finish; the next one does" >"$SCRATCH/interrupted"
  former_parts >"$SCRATCH/former"
  while IFS= read -r check_part; do
    obsolete_differences "$check_part"
    report_drift "$check_part"
  done <"$SCRATCH/former"
  while IFS= read -r check_part; do
    if is_wanted "$check_part"; then
      part_difference "$check_part" || { report_part "$check_part" failed; continue; }
      [ "$check_part" != host ] || [ ! -f "$SCRATCH/interrupted" ] || cat "$SCRATCH/interrupted" >>"$SCRATCH/changes"
      report_drift "$check_part"
    elif ! is_former "$check_part"; then
      report_part "$check_part" not-wanted
    fi
  done <"$SCRATCH/manifest/parts"
  finish
}

# report_drift PART: reports the differences found as drift.
report_drift() {
  if [ ! -s "$SCRATCH/changes" ]; then
    count_drift "$1" 0
    report_part "$1" unchanged
    return
  fi
  mv "$SCRATCH/changes" "$SCRATCH/drift"
  : >"$SCRATCH/changes"
  count_drift "$1" "$(wc -l <"$SCRATCH/drift")"
  report_part "$1" drift
}

verb_remove() {
  leave_if_absent
  open_state
  read_manifest
  is_ours || refuse # before the lock: there is no need to wait for it on another stack's host
  lock_state exclusive || refuse
  leave_if_absent # another removal may have ended meanwhile
  load_settings || refuse
  is_ours || refuse
  if [ ! -s "$STATE/placed" ]; then
    fail damaged "$STATE/placed, the list of what was placed on this host, is missing or empty, so it is unknown what to remove; run \`up\`, or gpu-fleet-pull on a host in pull mode, which writes it again; then remove the host"
    refuse
  fi
  recall_host
  settle_transaction || { explain_state; refuse; }
  : >"$SCRATCH/wanted"
  : >"$SCRATCH/expected"
  find_obsolete_parts
  OBSOLETE_WHY=removed
  # In reverse order; `host`, which all others depend on, is the first part.
  awk -F "$TAB" '!seen[$3]++ { part[++n] = $3 } END { for (; n; n--) print part[n] }' "$PLACED" >"$SCRATCH/former"
  while IFS= read -r remove_name; do
    remove_part "$remove_name" || explain_state
    [ -n "$FAIL_CODE" ] || drop_packages "$remove_name"
    if [ -n "$FAIL_CODE" ]; then report_part "$remove_name" failed; else report_part "$remove_name" removed; fi
  done <"$SCRATCH/former"
  [ "$COUNT_FAILED" -eq 0 ] || finish
  sweep_directories
  restore_all_foreign
  flush_changes # before the records are deleted
  # The program's own copy and the list are removed late: while they exist, an interrupted removal can be run again.
  set --
  for remove_name in digest stack settings facts undo saved packages current placed bundles lock; do
    set -- "$@" "$STATE/$remove_name" "$STATE/$remove_name.new"
  done
  rm -rf "$@" "$STATE"/scratch.*
  rmdir "$STATE" 2>/dev/null
  # A whole host has these anyway; below a prefix they were created for the state directory.
  [ -z "$PREFIX" ] || rmdir "$PREFIX/var/lib" "$PREFIX/var" 2>/dev/null
  for remove_name in "$STATE" "$PREFIX/var/lib" "$PREFIX"; do
    [ ! -d "$remove_name" ] || { flush "$remove_name" && break; }
  done
  finish
}

# restore_all_foreign: restores foreign files that were saved when their directory became ours, unless the path exists again. Files
# put into a directory that we created were a change to our installation, and are removed with it.
restore_all_foreign() {
  [ -d "$STATE/saved" ] || return 0
  find "$STATE/saved" ! -type d >"$SCRATCH/saved"
  while IFS= read -r restore_from; do
    restore_path=${restore_from#"$STATE/saved"}
    [ -d "$PREFIX${restore_path%/*}" ] || continue
    [ -e "$PREFIX$restore_path" ] || [ -L "$PREFIX$restore_path" ] || restore_foreign "$restore_path"
  done <"$SCRATCH/saved"
}

# --- shared by the verbs ----------------------------------------------------------------------------------------------------

leave_if_absent() {
  [ -e "$STATE/current" ] && return 0
  ! grep -qv "^format$TAB" "$STATE/placed" 2>/dev/null || return 0
  echo '{"event":"absent"}'
  say "gpu-fleet is not installed on this host"
  exit 3
}

# restart_if_replaced: while this check waited for the lock, an apply may have replaced the bundle.
restart_if_replaced() {
  [ ! -f "$HERE/manifest" ] || return 0
  rm -rf "$SCRATCH"
  exec sh "$STATE/current/converge" "$VERB" --prefix "$PREFIX" --stack "$STACK" --instance "$INSTANCE" --metrics "$METRICS"
}

# look_at_host: settings, facts and the wanted parts; a fatal probe ends the run before any change.
look_at_host() {
  load_settings || refuse
  is_ours || refuse
  report_rename
  if ! run_probes; then
    report_part "$PROBED" failed
    finish 5
  fi
  report_facts
  choose_manager || refuse
  list_parts
}

# recall_host: the same, as recorded by the last apply.
recall_host() {
  report_facts
  choose_manager || refuse
  list_parts
}

# list_parts: what this host wants, and what is no longer wanted.
list_parts() {
  choose_parts
  gather_secrets
  list_wanted_things
  find_obsolete_parts
  survey_attributes
}

# is_ours: does this host's own record have this stack and, where one was given, this instance? Two stacks that manage one host would
# undo each other's changes with every run, and a renamed host still exists under its new name.
is_ours() {
  if [ -n "$STACK" ] && [ -f "$STATE/stack" ]; then
    IFS= read -r stack_here <"$STATE/stack"
    if ! is_among "$stack_here" "$STACK"; then
      fail other-stack "this host belongs to stack $stack_here, not to ${STACK%% *}; remove it from that stack first, or remove it from this stack's inventory"
      return 1
    fi
  fi
  instance_here
  [ -z "$INSTANCE" ] || [ -z "$INSTANCE_HERE" ] || is_among "$INSTANCE_HERE" "$INSTANCE" && return 0
  [ "$VERB" != apply ] || report_rename # not done: whoever asked decides whether it is one
  fail other-instance "this machine's own record says that it is $INSTANCE_HERE, not $INSTANCE; if that is right, remove $INSTANCE from the stack file, otherwise correct its address there"
}

# instance_here: sets INSTANCE_HERE to the name this host was last applied with, empty where there is none.
instance_here() {
  INSTANCE_HERE=$(sed -n 's/^GPU_FLEET_INSTANCE=//p' "$STATE/settings" 2>/dev/null)
}

# report_rename: reports that this run gives the host another name, or its first. Before a probe can end the run: the removal of the
# old name depends on it.
report_rename() {
  [ -f "$STATE/settings" ] || echo '{"event":"first"}'
  setting GPU_FLEET_INSTANCE || return 0
  [ -n "$INSTANCE_HERE" ] && [ "$INSTANCE_HERE" != "$VALUE" ] || return 0
  printf '{"event":"renamed","from":%s,"to":%s}\n' "$(json_text "$INSTANCE_HERE")" "$(json_text "$VALUE")"
}

# former_parts: parts with something on this host that is no longer wanted, the last first: removing it may need an earlier one.
former_parts() {
  awk -F "$TAB" '
    FILENAME == ARGV[1] { wanted[$1]; next }
    $1 != "package" && !($3 in wanted) && !seen[$3]++ { part[++n] = $3 }
    END { for (; n; n--) print part[n] }' "$SCRATCH/wanted" "$PLACED"
}

is_former() {
  while IFS= read -r former_part; do
    [ "$former_part" != "$1" ] || return 0
  done <"$SCRATCH/former"
  return 1
}

report_probe_failure() {
  IFS=$TAB read -r FAIL_CODE FAIL_MESSAGE <"$SCRATCH/probe.$1"
  report_part "$1" failed
}

# refuse: the run cannot start.
refuse() {
  report_part host failed
  finish
}

# explain_state: a failure without an error means that one of our own files could not be written.
explain_state() {
  [ -z "$FAIL_CODE" ] || return 0
  need_space && fail internal "unexplained error; see the messages before this one"
}
