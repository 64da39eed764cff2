# Reading the manifest (README.md has its format): one awk pass writes each part's records, by kind, to separate files.
# shellcheck shell=sh

read_manifest() {
  case $(uname -m) in
    x86_64 | amd64) ARCH=amd64 ;;
    aarch64 | arm64) ARCH=arm64 ;;
    *) ARCH=$(uname -m) ;;
  esac
  OUT=$SCRATCH/manifest awk -F "$TAB" '
    NR == 1 && $0 != "format" FS 1 { exit 4 }
    $1 == "format" { next }
    $1 == "part" { part = $2; print part >(ENVIRON["OUT"] "/parts"); next }
    { kind = $1; sub(/^[^\t]*\t/, ""); print >(ENVIRON["OUT"] "/" part "." kind) }
  ' "$HERE/manifest" 2>"$SCRATCH/stderr"
  case $? in
    0) return 0 ;;
    4) fail damaged "$HERE/manifest is of another version than the program beside it, which reads format 1; nothing was done. Make the bundle again from one checkout: \`make up\`, or a new publication for hosts in pull mode" ;;
    *) need_space && fail_as internal "cannot read $HERE/manifest" "$(cat "$SCRATCH/stderr")" ;;
  esac
  [ "$VERB" != needs ] || exit 0 # apply reports it
  refuse
}

# records PART KIND: sets RECORDS to a file of the records' fields, one record per line.
records() {
  RECORDS=$SCRATCH/manifest/$1.$2
  [ -f "$RECORDS" ] || RECORDS=/dev/null
}

# list_wanted_things: of the wanted parts
#   $SCRATCH/manifest/host.values   records like those of files, for what is made on this host: the environment file and the secrets
#   $SCRATCH/manifest/PART.paths    KIND TAB PATH of each file (file), program (bin) and directory (dir)
#   $SCRATCH/expected               KIND TAB KEY of everything that they place
#   $SCRATCH/causes                 CAUSE TAB DIGEST of everything on this host whose change restarts or reloads a unit
# and WANTED_PATHS, the paths in `expected`, one per line; HAS_UNITS.
list_wanted_things() {
  : >"$SCRATCH/causes"
  list_values
  set -- "$SCRATCH/manifest/host.values"
  HAS_UNITS=no
  while IFS= read -r list_part; do
    for list_kind in file download dir user unit; do
      records "$list_part" "$list_kind"
      [ "$RECORDS" = /dev/null ] || set -- "$@" "$RECORDS"
    done
    [ "$RECORDS" = /dev/null ] || HAS_UNITS=yes
  done <"$SCRATCH/wanted"
  WANTED_PATHS=$(SCRATCH=$SCRATCH OUR_GROUPS=$OUR_GROUPS awk -F "$TAB" -v manager="$MANAGER" -v arch="$ARCH" '
    BEGIN {
      n = split(ENVIRON["OUR_GROUPS"], group, " ")
      for (i = 1; i <= n; i++) expect("group", group[i])
    }
    FNR == 1 { kind = part = FILENAME; sub(/.*\./, "", kind); sub(/\.[a-z]*$/, "", part) }
    function expect(kind, key) {
      print kind FS key >(ENVIRON["SCRATCH"] "/expected")
      if (kind == "file" || kind == "bin" || kind == "dir") list_path(key)
    }
    function list_path(path) {
      if (!(path in seen)) print path
      seen[path]
    }
    function place(kind, key) {
      expect(kind, key)
      print kind FS key >(part ".paths")
      while (sub(/\/[^\/]*$/, "", key) && key != "" && !(key in parent)) {
        parent[key]
        expect("dir", key)
      }
    }
    function cause(key, digest) { print key FS digest >>(ENVIRON["SCRATCH"] "/causes") }
    kind == "values" { place("file", $2) }
    kind == "file" && ($1 == "any" || $1 == manager) { place("file", $2); cause($2, $6) }
    kind == "dir" && ($1 == "any" || $1 == manager) { place("dir", $2) }
    kind == "download" && $3 == arch { place("bin", $1); cause($1, $4 ":" $5) }
    kind == "user" || kind == "unit" { expect(kind, $1) }
  ' "$@")
}

# list_values: $SCRATCH/manifest/host.values, and `causes` of the values. A new name, datacenter or cluster restarts only the units that
# read them, and a value that no service reads restarts nothing.
list_values() {
  VALUES_MODE=640
  [ "$OWNERS" = yes ] || VALUES_MODE=600
  (cd "$SCRATCH" && sha256sum env values.settings values.identity secrets/* 2>/dev/null) >"$SCRATCH/sums"
  while IFS=' ' read -r list_sum list_name; do
    list_group=$GROUP
    case $list_name in
      env) list_path=$ENV_FILE ;;
      values.*)
        printf '%s\t%s\n' "${list_name#values.}" "$list_sum" >>"$SCRATCH/causes"
        continue
        ;;
      secrets/*)
        printf '%s\t%s\n' "$list_name" "$list_sum" >>"$SCRATCH/causes"
        list_path=$SECRETS_DIRECTORY/${list_name#secrets/}
        secret_group "${list_name#secrets/}"
        list_group=$SECRET_GROUP
        # Without an envelope, only the record has the secret's digest.
        [ -n "$ENVELOPE" ] || ! placed_get file "$list_path" || list_sum=$PLACED_A
        ;;
    esac
    [ "$OWNERS" = yes ] || list_group=root
    printf 'any\t%s\t%s\troot\t%s\t%s\t%s\n' "$list_path" "$VALUES_MODE" "$list_group" "$list_sum" "$SCRATCH/$list_name"
  done <"$SCRATCH/sums" >"$SCRATCH/manifest/host.values"
}

# sha256 FILE: sets SHA256.
sha256() {
  SHA256=$(sha256sum <"$1")
  SHA256=${SHA256%% *}
}

# has_sha256 FILE SHA256: sets SHA256 to what it has.
has_sha256() {
  sha256 "$1"
  [ "$SHA256" = "$2" ]
}
