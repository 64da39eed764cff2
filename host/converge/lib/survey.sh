# Finds everything that matches the bundle in one pass. Every host checks itself every ten minutes, so a check must cost next to
# nothing, and comparing files one by one starts several processes per file.
# shellcheck shell=sh

# survey: drops what matches from the records of the wanted parts, and sets OBSOLETE_PARTS. Only for `check`: other verbs change what
# is found here.
survey() {
  OBSOLETE_PARTS=" $(obsolete_records <"$PLACED" | awk -F "$TAB" '!seen[$3]++ { printf "%s ", $3 }')"
  set --
  while IFS= read -r survey_part; do
    for survey_kind in file download dir; do
      records "$survey_part" "$survey_kind"
      [ "$RECORDS" = /dev/null ] || set -- "$@" "$RECORDS"
    done
  done <"$SCRATCH/wanted"
  [ $# -gt 0 ] || return 0
  PREFIX=$PREFIX awk '{ print ENVIRON["PREFIX"] $0 }' "$SCRATCH/paths" | tr '\n' '\0' | xargs -0 stat -c "%n$TAB%F$TAB%a$TAB%U:%G$TAB%i:%s:%z" >"$SCRATCH/found" 2>/dev/null
  # Only regular files: reading a named pipe at such a path would never end. Programs have hundreds of megabytes; their fingerprint
  # is enough.
  PREFIX=$PREFIX awk -F "$TAB" 'FILENAME == ARGV[1] { if ($1 == "file") file[ENVIRON["PREFIX"] $2]; next } $2 ~ /^regular/ && $1 in file { print $1 }' \
    "$SCRATCH/expected" "$SCRATCH/found" | tr '\n' '\0' | xargs -0 sha256sum >"$SCRATCH/sums" 2>/dev/null
  PREFIX=$PREFIX awk -F "$TAB" -v owners="$OWNERS" -v arch="$ARCH" -v manager="$MANAGER" '
    FILENAME == ARGV[1] { odd[ENVIRON["PREFIX"] $1]; next }
    FILENAME == ARGV[2] { type[$1] = $2; mode[$1] = $3; owner[$1] = $4; fingerprint[$1] = $5; next }
    FILENAME == ARGV[3] { sum[substr($0, 67)] = substr($0, 1, 64); next } # 64 digits, two blanks, the path
    FILENAME == ARGV[4] { if ($1 == "file") placed[$2]; if ($1 == "bin") source[$2] = $5 FS $6; next }
    FNR == 1 { kind = FILENAME; sub(/.*\./, "", kind) }
    { path = kind == "download" ? $1 : $2; at = ENVIRON["PREFIX"] path; is_right = type[at] ~ /^(regular|directory)/ && !(at in odd) }
    kind == "file" { if ($1 != "any" && $1 != manager) next; is_right = is_right && has($3, $4 ":" $5) && sum[at] == $6 && path in placed }
    kind == "download" { if ($3 != arch) next; is_right = is_right && has($2, "root:root") && source[path] == $4 ":" $5 FS fingerprint[at] }
    kind == "dir" { if ($1 != "any" && $1 != manager) next; is_right = is_right && has($3, $4 ":" $5) && $6 != "placed" }
    !is_right { print >(FILENAME ".left") }
    function has(wanted_mode, wanted_owner) {
      return (owners == "no" || owner[at] == wanted_owner) && mode[at] == wanted_mode
    }
  ' "$SCRATCH/attributes" "$SCRATCH/found" "$SCRATCH/sums" "$PLACED" "$@"
  rm -f "$@"
  for survey_left in "$SCRATCH/manifest"/*.left; do
    [ ! -f "$survey_left" ] || mv "$survey_left" "${survey_left%.left}"
  done
}
