# One part: applied, restored when it does not come up, removed.
# shellcheck shell=sh

# converge_part PART: on failure returns 1 with the error set and the part's previous state restored.
converge_part() {
  UNDO=''
  : >"$SCRATCH/restored"
  part_difference "$1" || return 1
  if [ ! -s "$SCRATCH/actions" ]; then
    undo_forget "$1" # left by a run that was interrupted after its last change
    record_part "$1"
    return
  fi
  say "$1: $(wc -l <"$SCRATCH/changes" | tr -d ' ') changes"
  undo_begin "$1" || return 1
  if change_part "$1" && wait_ready "$1"; then
    record_units "$1" && drop_records "$SCRATCH/obsolete" "bin dir user group" && placed_forget "$SCRATCH/obsolete" || return 1
    drop_saved
    awk -F "$TAB" '{ print $2 }' "$SCRATCH/actions" >>"$SCRATCH/changed"
    [ "$1" = host ] || undo_end # the old values are needed until the last part is done
    return 0
  fi
  [ "$1" = host ] || put_back "$1"
  return 1
}

# change_part PART: performs $SCRATCH/actions in the order of their dependencies.
change_part() {
  [ "$1" != host ] || leave_other_manager || return 1
  save_foreign_files && record_part "$1" && forget_units || return 1
  perform "$1" "group package user dir foreign" &&
    drop_records "$SCRATCH/obsolete" "unit file" &&
    perform "$1" "file download manager" || return 1
  ! touches_units || service definitions || return 1
  has_services "$1" || return 0
  free_ports "$1" && perform "$1" "start restart reload"
}

# perform PART "OPERATION...": performs these operations in the order of the manifest.
perform() {
  while IFS=$TAB read -r do_operation do_key do_1 do_2 do_3 do_4; do
    case " $2 " in
      *" $do_operation "*) ;;
      *) continue ;;
    esac
    case $do_operation in
      group) place_group "$do_key" "$1" ;;
      package) place_package "$do_1" "$do_key" "$1" ;;
      user) place_user "$do_key" "$do_1" "$do_2" "$1" ;;
      dir) place_dir "$do_key" "$do_1" "$do_2" "$do_3" "$do_4" "$1" ;;
      foreign) save_foreign "$do_key" && attempt "cannot remove $PREFIX$do_key" rm -rf "$PREFIX$do_key" && sweep_override "$do_key" ;;
      file) undo_save "$do_key" && place_file "$do_4" "$do_key" "$do_1" "$do_2" "$do_3" ;;
      download) undo_save "$do_key" && place_download "$do_key" "$do_1" "$do_2" "$do_3" "$do_4" "$1" ;;
      manager) service prepare ;;
      start | restart | reload) service "$do_operation" "$do_key" "$do_1" ;;
    esac || return 1
  done <"$SCRATCH/actions"
}

# save_foreign_files: saves existing files at the paths of ours. Called before our records name these paths: then they are ours.
save_foreign_files() {
  while IFS=$TAB read -r save_operation save_path _; do
    case $save_operation in
      file) placed_get file "$save_path" && continue ;;
      download) placed_get bin "$save_path" && continue ;;
      *) continue ;;
    esac
    ! has_our_name "$save_path" || continue
    if [ -f "$PREFIX$save_path" ] || [ -L "$PREFIX$save_path" ]; then
      save_foreign "$save_path" || return 1
    fi
  done <"$SCRATCH/actions"
}

# record_part PART: records everything that the part places, before it is placed.
record_part() {
  {
    records "$1" file
    PART=$1 awk -F "$TAB" -v manager="$MANAGER" '
      $1 == "any" || $1 == manager { print "file" FS $2 FS ENVIRON["PART"] FS $6 FS "-" FS "-" }' "$RECORDS"
    if [ "$1" = host ]; then
      printf 'file\t%s\t%s\t%s\t-\t-\n' "$ENV_FILE" host "$(sha256 "$SCRATCH/env")"
      for record_secret in "$SCRATCH/secrets"/*; do
        [ -f "$record_secret" ] || continue
        record_path=$SECRETS_DIRECTORY/${record_secret##*/}
        # Without an envelope to restore it, an edited secret keeps its record.
        [ -z "$ENVELOPE" ] && placed_get file "$record_path" && continue
        printf 'file\t%s\t%s\t%s\t-\t-\n' "$record_path" host "$(sha256 "$record_secret")"
      done
    fi
    # A directory that we created for a file of an earlier part belongs to the part that declares it.
    records "$1" dir
    PART=$1 awk -F "$TAB" '
      FILENAME == ARGV[1] { if ($1 == "dir") made[$2]; next }
      $2 in made || $2 ~ /\/gpu-fleet(\/|$)/ { print "dir" FS $2 FS ENVIRON["PART"] FS $6 FS "-" FS "-" }' "$PLACED" "$RECORDS"
    records "$1" unit
    PART=$1 awk -F "$TAB" -v manager="$MANAGER" '{ print "unit" FS $1 FS ENVIRON["PART"] FS $2 FS manager FS "-" }' "$RECORDS"
    # The source of a program is recorded when it is placed, so an existing record is kept.
    records "$1" download
    PART=$1 awk -F "$TAB" -v arch="$ARCH" '
      FILENAME == ARGV[1] { if ($1 == "bin") old[$2] = $4 FS $5 FS $6; next }
      $3 == arch { print "bin" FS $1 FS ENVIRON["PART"] FS ($1 in old ? old[$1] : "-" FS "-" FS "-") }
    ' "$PLACED" "$RECORDS"
  } >"$SCRATCH/records"
  if awk -F "$TAB" 'FILENAME == ARGV[1] { has[$0]; next } !($0 in has) { new = 1 } END { exit !new }' "$PLACED" "$SCRATCH/records"; then
    placed_merge "$SCRATCH/records"
  fi
}

# forget_units: drops the `with` records of units about to be changed, until they are up again.
forget_units() {
  awk -F "$TAB" '
    FILENAME == ARGV[1] { if ($1 ~ /^(start|restart|reload)$/) unit[$2]; next }
    $1 == "with" { name = $2; sub(/:.*/, "", name); if (name in unit) print $1 FS $2 }
  ' "$SCRATCH/actions" "$PLACED" >"$SCRATCH/forget"
  placed_forget "$SCRATCH/forget"
}

# record_units PART: records what its units, which are up, run with.
record_units() {
  records "$1" restart
  record_restart=$RECORDS
  records "$1" reload
  PART=$1 awk -F "$TAB" '
    FILENAME == ARGV[1] { digest[$1] = $2; next }
    $2 in digest { print "with" FS $1 ":" $2 FS ENVIRON["PART"] FS digest[$2] FS "-" FS "-" }
  ' "$SCRATCH/causes" "$record_restart" "$RECORDS" >"$SCRATCH/records"
  placed_merge "$SCRATCH/records"
}

touches_units() {
  awk -F "$TAB" '$2 ~ /^\/etc\/systemd\/system\// || $2 ~ /^\/etc\/gpu-fleet\/supervisor\.d\// || $2 ~ /\.(service|timer)\.d\// { found = 1 }
    END { exit !found }' "$SCRATCH/actions" || grep -q 'has a unit file that systemd has not read' "$SCRATCH/changes"
}

has_services() {
  records "$1" unit
  [ "$RECORDS" != /dev/null ]
}

# put_back PART: restores the previous state; the part's error stays, with the result of the restore added.
put_back() {
  put_code=$FAIL_CODE put_message=$FAIL_MESSAGE
  cp "$SCRATCH/log" "$SCRATCH/log.kept"
  say "$1: restoring the previous version"
  placed_of "$1" >"$SCRATCH/now"
  awk -F "$TAB" 'FILENAME == ARGV[1] { was[$1 FS $2]; next } !(($1 FS $2) in was)' "$UNDO/placed" "$SCRATCH/now" >"$SCRATCH/made"
  drop_records "$SCRATCH/made" unit
  undo_files
  awk -F "$TAB" '$1 == "file" || $1 == "bin" { print $2 }' "$SCRATCH/made" >"$SCRATCH/restored"
  drop_records "$SCRATCH/made" user
  placed_forget "$SCRATCH/now"
  drop_saved
  placed_merge "$UNDO/placed"
  # A directory that is not empty stays, and stays recorded as ours. So do packages, until the host is removed.
  awk -F "$TAB" '$1 == "dir"' "$SCRATCH/made" >"$SCRATCH/made.directories"
  placed_merge "$SCRATCH/made.directories"
  awk -F "$TAB" '$1 == "package"' "$SCRATCH/made" >"$SCRATCH/made.packages"
  placed_merge "$SCRATCH/made.packages"
  sweep "$SCRATCH/made.directories"
  service definitions
  if grep -q "^unit$TAB" "$UNDO/placed"; then
    run_as_before && put_end="the previous version runs again" || put_end="the previous version does not run either"
  elif [ -s "$UNDO/placed" ]; then
    put_end="its previous state is restored"
  else
    put_end="what was placed for it was removed"
  fi
  undo_end
  no_error
  cp "$SCRATCH/log.kept" "$SCRATCH/log"
  fail "$put_code" "$put_message; $put_end" || true
}

# run_as_before: starts the old units. They ran with the old settings, which are put in place while they start, so that a bad port in
# the new settings stops nothing. The environment file is shared by all parts, so it gets the new settings back afterwards.
run_as_before() {
  before_env=$(KEY=$ENV_FILE awk -F "$TAB" '$1 == ENVIRON["KEY"] && $2 != "-" { print $2 }' "$STATE/undo/host/list" 2>/dev/null)
  values_mode=640 values_group=$GROUP
  [ "$OWNERS" = yes ] || values_mode=600 values_group=root
  [ -z "$before_env" ] || place_file "$STATE/undo/host/$before_env" "$ENV_FILE" "$values_mode" root "$values_group"
  awk -F "$TAB" '$1 == "unit" { print $2 FS $4 }' "$UNDO/placed" >"$SCRATCH/before"
  while IFS=$TAB read -r before_unit before_type; do
    service restart "$before_unit" "$before_type"
  done <"$SCRATCH/before"
  before_tries=25
  RECORDS=$SCRATCH/before
  until are_steady; do
    before_tries=$((before_tries - 1))
    [ "$before_tries" -gt 0 ] || break
    pause
  done
  [ -z "$before_env" ] || place_file "$SCRATCH/env" "$ENV_FILE" "$values_mode" root "$values_group"
  [ "$before_tries" -gt 0 ]
}

# remove_part PART: removes everything placed for it that no wanted part has.
remove_part() {
  say "$1: removing"
  UNDO=''
  : >"$SCRATCH/restored"
  obsolete "$1" >"$SCRATCH/obsolete"
  obsolete_differences "$1"
  drop_records "$SCRATCH/obsolete" unit || return 1
  [ "$1" != host ] || service leave || return 1
  drop_records "$SCRATCH/obsolete" file || return 1
  # A removal ends with the part `host`; the service manager then forgets all units at once.
  [ "$VERB" = remove ] || ! touches_units || service definitions || return 1
  drop_records "$SCRATCH/obsolete" "bin dir user group" || return 1
  placed_of "$1" with >>"$SCRATCH/obsolete"
  placed_forget "$SCRATCH/obsolete" && drop_saved && undo_forget "$1"
}

# drop_records FILE "KIND...": removes these things from the host, deepest directory first, and restores saved foreign files.
drop_records() {
  [ -s "$1" ] || return 0
  for drop_kind in $2; do
    awk -F "$TAB" -v kind="$drop_kind" '$1 == kind' "$1" | sort -r >"$SCRATCH/drop"
    while IFS=$TAB read -r _ drop_key _ drop_a drop_b _; do
      case $drop_kind in
        unit) "${drop_b}_stop" "$drop_key" "$drop_a" ;;
        file | bin) { [ -z "$UNDO" ] || undo_save "$drop_key"; } && drop_file "$drop_key" && restore_foreign "$drop_key" ;;
        dir) drop_dir "$drop_key" ;;
        user) drop_user "$drop_key" ;;
        group) drop_group "$drop_key" ;;
      esac || return 1
    done <"$SCRATCH/drop"
  done
}

# restore_foreign PATH: restores the file that existed before ours. Its saved copy stays until drop_saved.
restore_foreign() {
  [ -e "$STATE/saved$1" ] || [ -L "$STATE/saved$1" ] || return 0
  # It may be on another file system: first a copy, flushed to disk.
  new_name "$1"
  rm -rf "$NEW"
  attempt "cannot restore $PREFIX$1, which existed before us" cp -pPR "$STATE/saved$1" "$NEW" || return 1
  find "$NEW" -type f -exec sync {} + 2>/dev/null || sync
  attempt "cannot restore $PREFIX$1, which existed before us" mv -fT "$NEW" "$PREFIX$1" || return 1
  will_flush "$PREFIX${1%/*}"
  printf '%s\n' "$1" >>"$SCRATCH/restored"
}

# drop_saved: deletes the saved copies of what was restored, once the records on disk call those paths ours no more. Until then the
# next run would remove a restored file as ours, and needs the copy again.
drop_saved() {
  [ -s "$SCRATCH/restored" ] || return 0
  flush_changes
  while IFS= read -r saved_path; do
    rm -rf "$STATE/saved$saved_path"
  done <"$SCRATCH/restored"
  : >"$SCRATCH/restored"
}
