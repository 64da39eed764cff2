# How one part differs from the bundle. The same lines are a plan's changes, a check's drift, and what apply changes.
# shellcheck shell=sh

# part_difference PART: fills $SCRATCH/actions, OPERATION TAB KEY TAB fields for apply, and $SCRATCH/changes, the same for people.
# Returns 1 with the error set when this host does not support the part.
part_difference() {
  : >"$SCRATCH/actions"
  cat "$SCRATCH/said.$1" >"$SCRATCH/changes" 2>/dev/null
  [ "$1" != host ] || group_differences
  package_differences "$1" || return 1
  user_differences "$1"
  dir_differences "$1"
  file_differences "$1"
  [ "$1" != host ] || values_difference
  download_differences "$1"
  obsolete_differences "$1"
  [ "$1" != host ] || manager_difference
  unit_differences "$1"
  work_difference "$1"
}

# differs TEXT OPERATION KEY [FIELD...]
differs() {
  printf '%s\n' "$1" >>"$SCRATCH/changes"
  shift
  differs_line=$1
  shift
  for differs_field; do
    differs_line=$differs_line$TAB$differs_field
  done
  printf '%s\n' "$differs_line" >>"$SCRATCH/actions"
}

# unless_ours KIND PATH: sets DIFF when the thing matches the bundle but has no record: somebody else placed it, and we adopt it.
unless_ours() {
  [ -n "$DIFF" ] || placed_get "$1" "$2" || DIFF="exists without a record, to be adopted"
}

group_differences() {
  for diff_group in $(our_groups); do
    if ! has_group "$diff_group"; then
      differs "group $diff_group: missing" group "$diff_group"
    elif is_lost_account group group "$diff_group"; then
      differs "group $diff_group: exists without a record, to be adopted" group "$diff_group"
    fi
  done
}

package_differences() {
  records "$1" package
  [ "$RECORDS" = /dev/null ] && return 0
  diff_family=$(package_family)
  if ! grep -q "^$diff_family$TAB" "$RECORDS"; then
    diff_known=$(cut -f 1 "$RECORDS" | sort -u | tr '\n' ' ')
    fail unsupported "part $1 needs distribution packages, which are defined only for: ${diff_known% }, not for this distribution ($diff_family)"
    return 1
  fi
  while IFS=$TAB read -r diff_for diff_package; do
    [ "$diff_for" = "$diff_family" ] || continue
    has_package "$diff_family" "$diff_package" || differs "package $diff_package: missing" package "$diff_package" "$diff_family"
  done <"$RECORDS"
}

user_differences() {
  REGROUPED=
  records "$1" user
  while IFS=$TAB read -r diff_user diff_home diff_groups; do
    user_difference "$diff_user" "$diff_home" "$diff_groups"
    [ -z "$DIFF" ] || differs "user $diff_user: $DIFF" user "$diff_user" "$diff_home" "$diff_groups"
  done <"$RECORDS"
}

dir_differences() {
  records "$1" dir
  while IFS=$TAB read -r diff_manager diff_path diff_mode diff_owner diff_group diff_contents; do
    [ "$diff_manager" = any ] || [ "$diff_manager" = "$MANAGER" ] || continue
    dir_difference "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_contents"
    [ -z "$DIFF" ] || differs "directory $diff_path: $DIFF" dir "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_contents"
    [ "$diff_contents" != placed ] || foreign_differences "$diff_path"
  done <"$RECORDS"
}

foreign_differences() {
  foreign_files "$1" >"$SCRATCH/foreign"
  while IFS= read -r diff_path; do
    # What we placed and no longer want is not foreign; obsolete_differences reports it.
    placed_get file "$diff_path" || placed_get bin "$diff_path" || differs "file $diff_path: foreign file in our directory" foreign "$diff_path"
  done <"$SCRATCH/foreign"
}

file_differences() {
  records "$1" file
  while IFS=$TAB read -r diff_manager diff_path diff_mode diff_owner diff_group diff_sum; do
    [ "$diff_manager" = any ] || [ "$diff_manager" = "$MANAGER" ] || continue
    file_difference "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_sum"
    unless_ours file "$diff_path"
    [ -z "$DIFF" ] || differs "file $diff_path: $DIFF" file "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$HERE/files$diff_path"
  done <"$RECORDS"
}

# values_difference: the environment file, reported by the names of the settings that differ, and the secrets.
values_difference() {
  values_mode=640 values_group=$GROUP
  [ "$OWNERS" = yes ] || values_mode=600 values_group=root
  file_difference "$ENV_FILE" "$values_mode" root "$values_group" "$(sha256 "$SCRATCH/env")"
  unless_ours file "$ENV_FILE"
  if [ "$DIFF" = "content differs" ]; then
    diff_names=$(awk -F = 'FILENAME == ARGV[1] { old[$1] = $0; next } { if (old[$1] != $0) print $1; delete old[$1] }
      END { for (name in old) print name }' "$PREFIX$ENV_FILE" "$SCRATCH/env" | grep '^[A-Za-z_][A-Za-z0-9_]*$' | sort | tr '\n' ' ')
    DIFF="content differs${diff_names:+: $diff_names}"
    DIFF=${DIFF% }
  fi
  [ -z "$DIFF" ] || differs "file $ENV_FILE: $DIFF" file "$ENV_FILE" "$values_mode" root "$values_group" "$SCRATCH/env"
  for diff_cause in settings identity; do
    [ "$(values_digest "$diff_cause" "$PREFIX$ENV_FILE")" = "$(values_digest "$diff_cause" "$SCRATCH/env")" ] || echo "$diff_cause" >>"$SCRATCH/changed"
  done
  for diff_secret in "$SCRATCH/secrets"/*; do
    [ -f "$diff_secret" ] || continue
    diff_path=$SECRETS_DIRECTORY/${diff_secret##*/}
    diff_sum=$(sha256 "$diff_secret")
    # Without an envelope, only the record has the secret's digest.
    [ -n "$ENVELOPE" ] || ! placed_get file "$diff_path" || diff_sum=$PLACED_A
    [ "$OWNERS" = no ] || values_group=$(secret_group "${diff_secret##*/}")
    file_difference "$diff_path" "$values_mode" root "$values_group" "$diff_sum"
    unless_ours file "$diff_path"
    [ -z "$DIFF" ] || differs "file $diff_path: $DIFF" file "$diff_path" "$values_mode" root "$values_group" "$diff_secret"
  done
}

download_differences() {
  records "$1" download
  while IFS=$TAB read -r diff_path diff_mode diff_arch diff_sum diff_member diff_url; do
    [ "$diff_arch" = "$ARCH" ] || continue
    download_difference "$diff_path" "$diff_mode" "$diff_sum" "$diff_member"
    [ -z "$DIFF" ] || differs "program $diff_path: $DIFF" download "$diff_path" "$diff_mode" "$diff_sum" "$diff_member" "$diff_url"
  done <"$RECORDS"
}

OBSOLETE_WHY="no longer wanted"

# obsolete_differences: what was placed for this part and no wanted part has anymore.
obsolete_differences() {
  obsolete "$1" >"$SCRATCH/obsolete"
  while IFS=$TAB read -r diff_kind diff_key _; do
    case $diff_kind in
      bin) diff_kind=program ;;
      dir) diff_kind=directory ;;
      unit) diff_kind=service ;;
    esac
    differs "$diff_kind $diff_key: $OBSOLETE_WHY" drop "$diff_key"
  done <"$SCRATCH/obsolete"
}

# obsolete PART: its records of things that no wanted part has. Packages stay until the host is removed.
# Shared directories are left to sweep_directories.
obsolete() {
  if [ "$VERB" = check ]; then
    case $OBSOLETE_PARTS in
      *" $1 "*) ;;
      *) return 0 ;;
    esac
  fi
  placed_of "$1" | obsolete_records
}

# obsolete_records: those of the records on standard input.
obsolete_records() {
  awk -F "$TAB" -v manager="$MANAGER" '
    FILENAME == ARGV[1] { wanted[$1 FS $2]; next }
    $1 == "with" || $1 == "format" || $1 == "package" || ($1 == "dir" && $4 != "runtime") { next }
    !(($1 FS $2) in wanted) || ($1 == "unit" && $5 != manager)
  ' "$SCRATCH/expected" -
}

manager_difference() {
  has_units || return 0
  service missing
  [ -z "$DIFF" ] || differs "$MANAGER: $DIFF" manager "$MANAGER"
}

has_units() {
  grep -q "^unit$TAB" "$SCRATCH/expected"
}

unit_differences() {
  records "$1" unit
  while IFS=$TAB read -r diff_unit diff_type; do
    for diff_directory in $(service override_directories "$diff_unit" "$diff_type"); do
      [ ! -d "$PREFIX$diff_directory" ] || foreign_differences "$diff_directory"
    done
    service difference "$diff_unit" "$diff_type"
    # A unit that starting the manager starts has to be waited for like any other.
    [ -n "$DIFF" ] || [ "$MANAGER_STARTED" = no ] || DIFF="is not running"
    diff_operation=start
    diff_text=$DIFF
    if restart_cause "$1" restart "$diff_unit"; then
      diff_operation=restart
    elif [ -z "$DIFF" ] && restart_cause "$1" reload "$diff_unit"; then
      diff_operation=reload
    fi
    [ -n "$diff_text" ] || [ "$diff_operation" = start ] || diff_text="to be ${diff_operation}ed, because $CAUSE changed"
    [ -z "$diff_text" ] || differs "service $diff_unit: $diff_text" "$diff_operation" "$diff_unit" "$diff_type"
  done <"$RECORDS"
}

# work_difference PART: everything is in place and running, but does it work? Checked only then: any other difference explains a failure.
work_difference() {
  records "$1" check
  [ "$RECORDS" != /dev/null ] && [ ! -s "$SCRATCH/changes" ] || return 0
  cp "$RECORDS" "$SCRATCH/checks"
  work_until=$(($(uptime_s) + 5)) # a service may be restarting at this moment
  work_last=no
  until do_checks_pass; do
    [ "$work_last" = no ] || break
    # Once more after that time: on a busy host a single request may take all of it.
    [ "$(uptime_s)" -lt "$work_until" ] || work_last=yes
    pause
  done
  [ -n "$UNMET" ] || return 0
  records "$1" unit
  [ "$RECORDS" != /dev/null ] || differs "check: $UNMET" wait "$1"
  while IFS=$TAB read -r work_unit work_type; do
    differs "service $work_unit: $UNMET" restart "$work_unit" "$work_type"
  done <"$RECORDS"
}

# restart_cause PART restart|reload UNIT: sets CAUSE to the first thing that changed since the unit was last started with it, according
# to the records; or that this run changes, except in a check, which has already reported that. A process keeps the groups that its
# user had when it started.
restart_cause() {
  if [ "$2" = restart ] && [ -n "$REGROUPED" ] && [ "$VERB" != check ]; then
    CAUSE=$REGROUPED
    return 0
  fi
  records "$1" "$2"
  [ "$RECORDS" = /dev/null ] && return 1
  if [ "$VERB" = check ]; then
    : >"$SCRATCH/changing"
  else
    # The host's values and files of earlier parts are in `changed`; this part's are in `actions`.
    awk -F "$TAB" '{ print $2 }' "$SCRATCH/actions" | cat - "$SCRATCH/changed" >"$SCRATCH/changing"
  fi
  CAUSE=$(UNIT=$3 SECRETS=$SECRETS_DIRECTORY awk -F "$TAB" '
    FNR == 1 { file = FILENAME; sub(/.*\//, "", file) }
    file == "placed" { if ($1 == "with") with[$2] = $4; next }
    file == "causes" { digest[$1] = $2; next }
    file == "changing" { changing[$1]; next }
    $1 == ENVIRON["UNIT"] && (($1 ":" $2) in with) && !($2 in digest) { print $2; exit } # its part left this host
    $1 == ENVIRON["UNIT"] && ($2 in digest) {
      path = $2
      sub(/^secrets/, ENVIRON["SECRETS"], path)
      if (path in changing || with[$1 ":" $2] != digest[$2]) { print $2; exit }
    }' "$PLACED" "$SCRATCH/causes" "$SCRATCH/changing" "$RECORDS")
  [ -n "$CAUSE" ]
}
