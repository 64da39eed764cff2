# How one part differs from the bundle. The same lines are a plan's changes, a check's drift, and what apply changes.
# shellcheck shell=sh

# part_difference PART: fills $SCRATCH/actions, OPERATION TAB KEY TAB fields for apply, and $SCRATCH/changes, the same for people.
# Returns 1 with the error set when this host does not support the part.
part_difference() {
  : >"$SCRATCH/actions"
  : >"$SCRATCH/changes"
  [ ! -f "$SCRATCH/said.$1" ] || cat "$SCRATCH/said.$1" >"$SCRATCH/changes"
  [ "$VERB" != apply ] || survey "$1" # other verbs, which change nothing that they find, do that once for all parts
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
  case "$1$TAB$3" in
    *"has a unit file that systemd has not read"* | *"$TAB"/etc/systemd/system/* | *"$TAB"/etc/gpu-fleet/supervisor.d/* | \
      *"$TAB"*.service.d/* | *"$TAB"*.timer.d/*) UNITS_CHANGE=yes ;;
  esac
  CHANGING=$CHANGING$3$NL
  differs_line=$2
  shift 2
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
  for diff_group in $OUR_GROUPS; do
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
  differing "$1" dir
  while IFS=$TAB read -r _ diff_path diff_mode diff_owner diff_group diff_contents diff_state; do
    DIFF=
    [ "$diff_state" = right ] || dir_difference "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_contents"
    [ -z "$DIFF" ] || differs "directory $diff_path: $DIFF" dir "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_contents"
    [ "$diff_contents" != placed ] || foreign_differences "$diff_path"
  done <"$RECORDS"
}

# foreign_differences DIRECTORY: its entries that belong to no wanted part.
foreign_differences() {
  for foreign_entry in "$PREFIX$1"/* "$PREFIX$1"/.*; do
    foreign_path=${foreign_entry#"$PREFIX"}
    case $foreign_path in
      */. | */.. | *.gpu-fleet-new) continue ;;
    esac
    [ -e "$foreign_entry" ] || [ -L "$foreign_entry" ] || continue
    case $NL$WANTED_PATHS$NL in
      *"$NL$foreign_path$NL"*) continue ;;
    esac
    # What we placed and no longer want is not foreign; obsolete_differences reports it.
    placed_get file "$foreign_path" || placed_get bin "$foreign_path" ||
      differs "file $foreign_path: foreign file in our directory" foreign "$foreign_path"
  done
}

file_differences() {
  differing "$1" file
  while IFS=$TAB read -r _ diff_path diff_mode diff_owner diff_group diff_sum; do
    file_difference "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_sum"
    unless_ours file "$diff_path"
    [ -z "$DIFF" ] || differs "file $diff_path: $DIFF" file "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$HERE/files$diff_path"
  done <"$RECORDS"
}

# values_difference: the environment file, reported by the names of the settings that differ, and the secrets.
values_difference() {
  differing host values
  while IFS=$TAB read -r _ diff_path diff_mode diff_owner diff_group diff_sum diff_from; do
    file_difference "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_sum"
    unless_ours file "$diff_path"
    if [ "$diff_path" = "$ENV_FILE" ]; then
      [ "$DIFF" != "content differs" ] || changed_names
      [ -z "$DIFF" ] || changed_values
    fi
    [ -z "$DIFF" ] || differs "file $diff_path: $DIFF" file "$diff_path" "$diff_mode" "$diff_owner" "$diff_group" "$diff_from"
  done <"$RECORDS"
}

# changed_names: completes DIFF with the names of the settings that differ.
changed_names() {
  diff_names=$(awk -F = 'FILENAME == ARGV[1] { old[$1] = $0; next } { if (old[$1] != $0) print $1; delete old[$1] }
    END { for (name in old) print name }' "$PREFIX$ENV_FILE" "$SCRATCH/env" | grep '^[A-Za-z_][A-Za-z0-9_]*$' | sort | tr '\n' ' ')
  DIFF="content differs${diff_names:+: $diff_names}"
  DIFF=${DIFF% }
}

# changed_values: which of the causes `settings` and `identity` change? settings.awk has the same rule.
changed_values() {
  for diff_cause in settings identity; do
    case $diff_cause in
      settings) grep -vE '^GPU_FLEET_(INSTANCE|DATACENTER|CLUSTER|STACK|PULL_[A-Z]*)=' "$PREFIX$ENV_FILE" ;;
      identity) grep -E '^GPU_FLEET_(INSTANCE|DATACENTER|CLUSTER)=' "$PREFIX$ENV_FILE" ;;
    esac >"$SCRATCH/values.old" 2>/dev/null
    is_same "$SCRATCH/values.old" "$SCRATCH/values.$diff_cause" || echo "$diff_cause" >>"$SCRATCH/changed"
  done
}

download_differences() {
  differing "$1" download
  while IFS=$TAB read -r diff_path diff_mode _ diff_sum diff_member diff_url; do
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
  is_among "$1" "$OBSOLETE_PARTS" || return 0
  obsolete_records "$1"
}

# find_obsolete_parts: sets OBSOLETE_PARTS to the names of the parts that have such records. In the course of a run they become fewer.
find_obsolete_parts() {
  OBSOLETE_PARTS=$(obsolete_records '')
}

# obsolete_records PART: these records; without a part, the names of all parts that have any, on one line.
obsolete_records() {
  PART=$1 awk -F "$TAB" -v manager="$MANAGER" '
    FILENAME == ARGV[1] { wanted[$1 FS $2]; next }
    $1 == "with" || $1 == "format" || $1 == "package" || ($1 == "dir" && $4 != "runtime") { next }
    (($1 FS $2) in wanted) && ($1 != "unit" || $5 == manager) { next }
    ENVIRON["PART"] == "" && !seen[$3]++ { printf "%s ", $3 }
    ENVIRON["PART"] == $3
  ' "$SCRATCH/expected" "$PLACED"
}

manager_difference() {
  [ "$HAS_UNITS" = yes ] || return 0
  service missing
  [ -z "$DIFF" ] || differs "$MANAGER: $DIFF" manager "$MANAGER"
}

unit_differences() {
  has_services "$1" || return 0
  list_causes "$1" >"$SCRATCH/units"
  while IFS=$TAB read -r diff_unit diff_type diff_restart diff_reload; do
    override_differences "$diff_unit" "$diff_type"
    service difference "$diff_unit" "$diff_type"
    service overrides "$diff_unit" "$diff_type" >"$SCRATCH/overrides"
    while IFS= read -r diff_override; do
      diff_override="is changed by $diff_override, which is not ours and stays; remove it, or except our services from it"
      if [ "$VERB" = check ]; then printf 'service %s: %s\n' "$diff_unit" "$diff_override" >>"$SCRATCH/changes"; else say "service $diff_unit $diff_override"; fi
    done <"$SCRATCH/overrides"
    # A unit that starting the manager starts has to be waited for like any other.
    [ -n "$DIFF" ] || [ "$MANAGER_STARTED" = no ] || DIFF="is not running"
    diff_operation=start
    diff_text=$DIFF
    # A process keeps the groups that its user had when it started.
    [ -z "$REGROUPED" ] || [ "$VERB" = check ] || diff_restart=$REGROUPED
    [ -z "$OVERRIDDEN" ] || [ "$VERB" = check ] || diff_restart=$OVERRIDDEN
    if [ "$diff_restart" != - ]; then
      diff_operation=restart
      diff_text=${DIFF:-to be restarted, because $diff_restart changed}
    elif [ -z "$DIFF" ] && [ "$diff_reload" != - ]; then
      diff_operation=reload
      diff_text="to be reloaded, because $diff_reload changed"
    fi
    [ -z "$diff_text" ] || differs "service $diff_unit: $diff_text" "$diff_operation" "$diff_unit" "$diff_type"
  done <"$SCRATCH/units"
}

# override_differences UNIT TYPE: what others placed to change the unit. Sets OVERRIDDEN, the directory that this run removes it from: also
# in the name of an earlier unit, where it is for several.
override_differences() {
  OVERRIDDEN=
  for override_directory in $(service override_directories "$1" "$2"); do
    override_before=$CHANGING
    [ ! -d "$PREFIX$override_directory" ] || foreign_differences "$override_directory"
    [ "$CHANGING" = "$override_before" ] || printf '%s\n' "$override_directory" >>"$SCRATCH/overridden"
    ! grep -qxF "$override_directory" "$SCRATCH/overridden" 2>/dev/null || OVERRIDDEN=$override_directory
  done
}

# work_difference PART: everything is in place and running, but does it work? Checked only then: any other difference explains a failure.
work_difference() {
  checks "$1"
  [ "$CHECKS" != /dev/null ] && [ ! -s "$SCRATCH/changes" ] || return 0
  read_uptime
  work_until=$((UPTIME_S + 5)) # a service may be restarting at this moment
  work_last=no
  until do_checks_pass; do
    [ "$work_last" = no ] || break
    # Once more after that time: on a busy host a single request may take all of it.
    read_uptime
    [ "$UPTIME_S" -lt "$work_until" ] || work_last=yes
    pause
  done
  [ -n "$UNMET" ] || return 0
  records "$1" unit
  [ "$RECORDS" != /dev/null ] || differs "check: $UNMET" wait "$1"
  while IFS=$TAB read -r work_unit work_type; do
    differs "service $work_unit: $UNMET" restart "$work_unit" "$work_type"
  done <"$RECORDS"
}

# list_causes PART: its units, UNIT TAB TYPE TAB CAUSE TAB CAUSE: the first things that are a reason to restart and to reload it, or `-`.
# Something is a reason that changed since the unit was last started with it, according to the records; or that this run changes, except
# in a check, which has already reported that.
list_causes() {
  causes_part=$1
  set -- "$PLACED" "$SCRATCH/causes"
  if [ "$VERB" != check ]; then
    printf '%s' "$CHANGING" >"$SCRATCH/changing"
    set -- "$@" "$SCRATCH/changing" "$SCRATCH/changed" # those of earlier parts
  fi
  for causes_kind in restart reload unit; do
    records "$causes_part" "$causes_kind"
    set -- "$@" "$RECORDS"
  done
  SECRETS=$SECRETS_DIRECTORY awk -F "$TAB" '
    FNR == 1 { file = FILENAME; sub(/.*[.\/]/, "", file) }
    file == "placed" { if ($1 == "with") with[$2] = $4; next }
    file == "causes" { digest[$1] = $2; next }
    file == "changed" || file == "changing" { changing[$1]; next }
    file == "unit" { print $1 FS $2 FS found("restart", $1) FS found("reload", $1); next }
    !((file, $1) in cause) && is_cause($1, $2) { cause[file, $1] = $2 }
    function is_cause(unit, what,    path) {
      if (!(what in digest)) return ((unit ":" what) in with) # its part left this host
      path = what
      sub(/^secrets/, ENVIRON["SECRETS"], path)
      return (path in changing) || with[unit ":" what] != digest[what]
    }
    function found(operation, unit) { return ((operation, unit) in cause) ? cause[operation, unit] : "-" }
  ' "$@"
}
