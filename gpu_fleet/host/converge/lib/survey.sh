# Finds what matches the bundle in one pass: comparing files one by one starts several processes for each, and every host checks itself
# every ten minutes.
# shellcheck shell=sh

# survey PART...: $SCRATCH/differing/PART.KIND, those records of files, values, programs and directories that do not match this host;
# each directory that only the bundle fills, followed by `right` where it matches.
survey() {
  survey_parts=$*
  : >"$SCRATCH/sums"
  : >"$SCRATCH/found"
  set --
  for survey_part in $survey_parts; do
    [ -f "$SCRATCH/manifest/$survey_part.paths" ] || continue
    while IFS=$TAB read -r survey_kind survey_path; do
      # Only regular files: reading a named pipe at such a path would never end. Programs have hundreds of megabytes; their fingerprint
      # is enough.
      [ "$survey_kind" != file ] || ! is_regular "$PREFIX$survey_path" || set -- "$@" "$PREFIX$survey_path"
    done <"$SCRATCH/manifest/$survey_part.paths"
  done
  [ $# -eq 0 ] || sha256sum "$@" >"$SCRATCH/sums" 2>/dev/null
  for survey_part in $survey_parts; do
    [ -f "$SCRATCH/manifest/$survey_part.paths" ] || continue
    while IFS=$TAB read -r survey_kind survey_path; do
      case $survey_kind in
        bin) ! is_regular "$PREFIX$survey_path" || set -- "$@" "$PREFIX$survey_path" ;;
        dir) [ ! -d "$PREFIX$survey_path" ] || [ -L "$PREFIX$survey_path" ] || set -- "$@" "$PREFIX$survey_path" ;;
      esac
    done <"$SCRATCH/manifest/$survey_part.paths"
  done
  [ $# -eq 0 ] || stat -c "%n$TAB%a$TAB%U:%G$TAB%i:%s:%z" "$@" >"$SCRATCH/found" 2>/dev/null
  set --
  for survey_part in $survey_parts; do
    for survey_kind in file values download dir; do
      records "$survey_part" "$survey_kind"
      [ "$RECORDS" = /dev/null ] || set -- "$@" "$RECORDS"
    done
  done
  [ $# -gt 0 ] || return 0
  PREFIX=$PREFIX DIFFERING=$SCRATCH/differing awk -F "$TAB" -v owners="$OWNERS" -v arch="$ARCH" -v manager="$MANAGER" '
    FILENAME == ARGV[1] { odd[ENVIRON["PREFIX"] $1]; next }
    FILENAME == ARGV[2] { mode[$1] = $2; owner[$1] = $3; fingerprint[$1] = $4; next }
    FILENAME == ARGV[3] { sum[substr($0, 67)] = substr($0, 1, 64); next } # 64 digits, two blanks, the path
    FILENAME == ARGV[4] { if ($1 == "file") placed[$2]; if ($1 == "bin") source[$2] = $5 FS $6; next }
    FNR == 1 { kind = name = FILENAME; sub(/.*\./, "", kind); sub(/.*\//, "", name) }
    { path = kind == "download" ? $1 : $2; at = ENVIRON["PREFIX"] path; is_right = (at in mode) && !(at in odd); state = "" }
    kind == "download" { if ($3 != arch) next; is_right = is_right && has($2, "root:root") && source[path] == $4 ":" $5 FS fingerprint[at] }
    kind != "download" { if ($1 != "any" && $1 != manager) next; is_right = is_right && has($3, $4 ":" $5) }
    kind == "file" || kind == "values" { is_right = is_right && sum[at] == $6 && path in placed }
    kind == "dir" && $6 == "placed" { state = is_right ? FS "right" : FS "differs"; is_right = 0 }
    !is_right { print $0 state >(ENVIRON["DIFFERING"] "/" name) }
    function has(wanted_mode, wanted_owner) {
      return (owners == "no" || owner[at] == wanted_owner) && mode[at] == wanted_mode
    }
  ' "$SCRATCH/attributes" "$SCRATCH/found" "$SCRATCH/sums" "$PLACED" "$@"
}

is_regular() {
  [ -f "$1" ] && [ ! -L "$1" ]
}

# differing PART KIND: sets RECORDS to the file of these records that the survey left.
differing() {
  RECORDS=$SCRATCH/differing/$1.$2
  [ -f "$RECORDS" ] || RECORDS=/dev/null
}
