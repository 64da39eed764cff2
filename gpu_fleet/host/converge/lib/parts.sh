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
  part_changes=0
  while IFS= read -r _; do part_changes=$((part_changes + 1)); done <"$SCRATCH/changes"
  say "$1: $part_changes changes"
  undo_begin "$1" || return 1
  if change_part "$1" && wait_ready "$1"; then
    record_units "$1" && drop_records "$SCRATCH/obsolete" "bin dir user group" && placed_forget "$SCRATCH/obsolete" || return 1
    drop_saved
    printf '%s' "$CHANGING" >>"$SCRATCH/changed"
    [ "$1" = host ] || undo_end # the old values are needed until the last part is done
    return 0
  fi
  [ "$1" = host ] || put_back "$1"
  return 1
}

# change_part PART: performs $SCRATCH/actions in the order of their dependencies.
change_part() {
  [ "$1" != host ] || leave_other_manager || return 1
  save_foreign_files && record_part "$1" || return 1
  perform "$1" "group package user dir foreign" &&
    drop_records "$SCRATCH/obsolete" "unit file" &&
    perform "$1" "file download manager" &&
    enable_units || return 1
  [ "$UNITS_CHANGE" = no ] || service definitions || return 1
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
      dir) place_dir "$do_key" "$do_1" "$do_2" "$do_3" "$do_4" ;;
      foreign) save_foreign "$do_key" && attempt "cannot remove $PREFIX$do_key" rm -rf "$PREFIX$do_key" && sweep_override "$do_key" ;;
      file) undo_save "$do_key" && place_file "$do_4" "$do_key" "$do_1" "$do_2" "$do_3" ;;
      download) undo_save "$do_key" && place_download "$do_key" "$do_1" "$do_2" "$do_3" "$do_4" "$1" ;;
      manager) service prepare ;;
      start | restart | reload) service "$do_operation" "$do_key" "$do_1" ;;
    esac || return 1
  done <"$SCRATCH/actions"
}

# enable_units: those that $SCRATCH/actions start.
enable_units() {
  while IFS=$TAB read -r enable_operation enable_unit enable_type _; do
    case $enable_operation in
      start | restart | reload) service enable "$enable_unit" "$enable_type" || return 1 ;;
    esac
  done <"$SCRATCH/actions"
}

# save_foreign_files: saves existing files at the paths of ours. Called before our records name these paths: then they are ours.
save_foreign_files() {
  while IFS=$TAB read -r save_operation save_path _; do
    case $save_operation in
      file) save_kind='file' ;;
      download) save_kind=bin ;;
      *) continue ;;
    esac
    [ -f "$PREFIX$save_path" ] || [ -L "$PREFIX$save_path" ] || continue
    ! placed_get "$save_kind" "$save_path" || continue
    # Another package or an administrator may use our names, too: gpu-fleet-node-exporter.service, /etc/gpu-fleet.
    ! has_our_name "$save_path" || ! were_records_lost || continue
    say "$save_path existed before: a copy is kept in $STATE/saved, and a removal restores it"
    save_foreign "$save_path" || return 1
  done <"$SCRATCH/actions"
}

# record_part PART: records everything that the part places, before it is placed: what it declares, and the directories that its actions
# create. The `with` records of units about to be changed are dropped, until they are up again.
record_part() {
  new_directories >"$SCRATCH/manifest/$1.directories"
  : >"$SCRATCH/drop.with"
  record_name=$1
  set -- "$SCRATCH/actions" "$PLACED"
  for record_kind in file values directories dir unit download; do
    records "$record_name" "$record_kind"
    set -- "$@" "$RECORDS"
  done
  PART=$record_name DROP=$SCRATCH/drop.with awk -F "$TAB" -v manager="$MANAGER" -v arch="$ARCH" '
    FILENAME == ARGV[1] { if ($1 ~ /^(start|restart|reload)$/) changing[$2]; next }
    FILENAME == ARGV[2] {
      has[$0]
      if ($1 == "dir") made[$2]
      if ($1 == "bin") old[$2] = $4 FS $5 FS $6
      if ($1 == "with") { unit = $2; sub(/:.*/, "", unit); if (unit in changing) print $1 FS $2 >(ENVIRON["DROP"]) }
      next
    }
    FNR == 1 { kind = FILENAME; sub(/.*[.\/]/, "", kind) }
    function record(kind, key, fields,    line) {
      line = kind FS key FS ENVIRON["PART"] FS fields
      if (!(line in has)) print line
    }
    kind == "directories" { if (!($2 in made)) print; made[$2] }
    (kind == "file" || kind == "values") && ($1 == "any" || $1 == manager) { record("file", $2, $6 FS "-" FS "-") }
    # A directory that we create, also one that we created for a file of an earlier part, belongs to the part that declares it.
    kind == "dir" && ($2 in made || $2 ~ /\/gpu-fleet(\/|$)/) { record("dir", $2, $6 FS "-" FS "-") }
    kind == "unit" { record("unit", $1, $2 FS manager FS "-") }
    # The source of a program is recorded when it is placed, so an existing record is kept.
    kind == "download" && $3 == arch { record("bin", $1, $1 in old ? old[$1] : "-" FS "-" FS "-") }
  ' "$@" >"$SCRATCH/records"
  placed_update "$SCRATCH/records" "$SCRATCH/drop.with"
}

# new_directories: prints records of the directories that $SCRATCH/actions create: missing ones, and those above what is placed.
new_directories() {
  while IFS=$TAB read -r new_operation new_path _; do
    case $new_operation in
      dir | file | download) missing_parents "$new_path" ;;
      *) continue ;;
    esac
    # Something else in its place is not ours.
    [ "$new_operation" != dir ] || [ -e "$PREFIX$new_path" ] || [ -L "$PREFIX$new_path" ] || MISSING="$MISSING $new_path"
    for new_directory in $MISSING; do
      placed_record dir "$new_directory" host shared
    done
  done <"$SCRATCH/actions"
}

# record_units PART: records what its units, which are up, run with.
record_units() {
  has_services "$1" || return 0
  records "$1" restart
  record_restart=$RECORDS
  records "$1" reload
  PART=$1 awk -F "$TAB" '
    FILENAME == ARGV[1] { digest[$1] = $2; next }
    $2 in digest { print "with" FS $1 ":" $2 FS ENVIRON["PART"] FS digest[$2] FS "-" FS "-" }
  ' "$SCRATCH/causes" "$record_restart" "$RECORDS" >"$SCRATCH/records"
  placed_merge "$SCRATCH/records"
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
  awk -F "$TAB" '$1 == "dir" || $1 == "package"' "$SCRATCH/made" >"$SCRATCH/made.kept"
  placed_merge "$SCRATCH/made.kept"
  awk -F "$TAB" '$1 == "dir"' "$SCRATCH/made" >"$SCRATCH/made.directories"
  sweep "$SCRATCH/made.directories"
  awk -F "$TAB" '$1 == "unit" { print $2 FS $4 }' "$UNDO/placed" >"$SCRATCH/before"
  while IFS=$TAB read -r put_unit put_type; do
    service enable "$put_unit" "$put_type"
  done <"$SCRATCH/before"
  service definitions
  if [ -s "$SCRATCH/before" ]; then
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

# run_as_before: starts the old units, those of $SCRATCH/before. They ran with the old settings, which are put in place while they
# start, so that a bad port in the new settings stops nothing. The environment file is shared by all parts, so it gets the new settings
# back afterwards.
run_as_before() {
  before_env=$(KEY=$ENV_FILE awk -F "$TAB" '$1 == ENVIRON["KEY"] && $2 != "-" { print $2 }' "$STATE/undo/host/list" 2>/dev/null)
  values_mode=640 values_group=$GROUP
  [ "$OWNERS" = yes ] || values_mode=600 values_group=root
  [ -z "$before_env" ] || place_file "$STATE/undo/host/$before_env" "$ENV_FILE" "$values_mode" root "$values_group"
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
  obsolete_differences "$1"
  keep_files "$1"
  drop_records "$SCRATCH/obsolete" unit || return 1
  [ "$1" != host ] || service leave || return 1
  drop_records "$SCRATCH/obsolete" file || return 1
  # A removal ends with the part `host`; the service manager then forgets all units at once.
  [ "$VERB" = remove ] || [ "$UNITS_CHANGE" = no ] || service definitions || return 1
  drop_records "$SCRATCH/obsolete" "bin dir user group" || return 1
  placed_of "$1" with >>"$SCRATCH/obsolete"
  placed_forget "$SCRATCH/obsolete" && drop_saved && undo_forget "$1"
}

# keep_files PART: takes its files out of $SCRATCH/obsolete and out of the records where something else needs them by now.
keep_files() {
  grep "^file$TAB" "$SCRATCH/obsolete" >"$SCRATCH/keeping" || return 0
  keep_why=$(packages_in_use "$1")
  [ -n "$keep_why" ] || return 0
  while IFS=$TAB read -r _ keep_path _; do
    WHY=$keep_why KEY="file $keep_path: " awk 'index($0, ENVIRON["KEY"]) == 1 { $0 = ENVIRON["KEY"] "kept, because " ENVIRON["WHY"] } { print }' \
      "$SCRATCH/changes" >"$SCRATCH/changes.new"
    mv "$SCRATCH/changes.new" "$SCRATCH/changes"
  done <"$SCRATCH/keeping"
  grep -v "^file$TAB" "$SCRATCH/obsolete" >"$SCRATCH/obsolete.new"
  mv "$SCRATCH/obsolete.new" "$SCRATCH/obsolete"
  placed_forget "$SCRATCH/keeping"
}

# drop_records FILE "KIND...": removes these things from the host, deepest directory first, and restores saved foreign files.
drop_records() {
  [ -s "$1" ] || return 0
  sort -r "$1" >"$SCRATCH/drop"
  for drop_kind in $2; do
    while IFS=$TAB read -r drop_is drop_key _ drop_a drop_b _; do
      [ "$drop_is" = "$drop_kind" ] || continue
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
