# Reading the manifest (README.md has its format): one awk pass writes each part's records, by kind, to separate files.
# shellcheck shell=sh

read_manifest() {
  case $(uname -m) in
    x86_64 | amd64) ARCH=amd64 ;;
    aarch64 | arm64) ARCH=arm64 ;;
    *) ARCH=$(uname -m) ;;
  esac
  mkdir "$SCRATCH/manifest" || return 1
  OUT=$SCRATCH/manifest awk -F "$TAB" '
    $1 == "format" && $2 != 1 { exit 1 }
    $1 == "format" { next }
    $1 == "part" { part = $2; print part >(ENVIRON["OUT"] "/parts"); next }
    { kind = $1; sub(/^[^\t]*\t/, ""); print >(ENVIRON["OUT"] "/" part "." kind) }
  ' "$HERE/manifest" || { say "converge: $HERE/manifest is not a manifest of format 1"; exit 2; }
}

# records PART KIND: sets RECORDS to a file of the records' fields, one record per line.
records() {
  RECORDS=$SCRATCH/manifest/$1.$2
  [ -f "$RECORDS" ] || RECORDS=/dev/null
}

# list_wanted_things: $SCRATCH/causes, CAUSE TAB DIGEST of everything on this host whose change restarts or reloads a unit;
# $SCRATCH/expected, KIND TAB KEY of everything that the wanted parts place.
list_wanted_things() {
  for list_cause in settings identity; do
    printf '%s\t%s\n' "$list_cause" "$(values_digest "$list_cause" "$SCRATCH/env")"
  done >"$SCRATCH/causes"
  printf 'file\t%s\n' "$ENV_FILE" >"$SCRATCH/expected"
  our_groups | sed "s/^/group$TAB/" >>"$SCRATCH/expected"
  for list_secret in "$SCRATCH/secrets"/*; do
    [ -f "$list_secret" ] || continue
    printf 'secrets/%s\t%s\n' "${list_secret##*/}" "$(sha256 "$list_secret")" >>"$SCRATCH/causes"
    printf 'file\t%s\n' "$SECRETS_DIRECTORY/${list_secret##*/}" >>"$SCRATCH/expected"
  done
  while IFS= read -r list_part; do
    set --
    for list_kind in file download dir user unit; do
      records "$list_part" "$list_kind"
      [ "$RECORDS" = /dev/null ] || set -- "$@" "$RECORDS"
    done
    [ $# -eq 0 ] || DIRECTORY=$SCRATCH awk -F "$TAB" -v manager="$MANAGER" -v arch="$ARCH" '
      FNR == 1 { kind = FILENAME; sub(/.*\./, "", kind) }
      function expect(kind, key) {
        print kind FS key >>(ENVIRON["DIRECTORY"] "/expected")
        if (kind == "user" || kind == "unit") return
        while (sub(/\/[^\/]*$/, "", key) && key != "" && !(key in parent)) {
          parent[key]
          print "dir" FS key >>(ENVIRON["DIRECTORY"] "/expected")
        }
      }
      function cause(key, digest) { print key FS digest >>(ENVIRON["DIRECTORY"] "/causes") }
      kind == "file" && ($1 == "any" || $1 == manager) { expect("file", $2); cause($2, $6) }
      kind == "dir" && ($1 == "any" || $1 == manager) { expect("dir", $2) }
      kind == "download" && $3 == arch { expect("bin", $1); cause($1, $4 ":" $5) }
      kind == "user" || kind == "unit" { expect(kind, $1) }
    ' "$@"
  done <"$SCRATCH/wanted"
}

# values_digest settings|identity FILE: of an environment file. A new name, datacenter or cluster restarts only the units that read
# them, and a value that no service reads restarts nothing.
values_digest() {
  case $1 in
    settings) grep -vE '^GPU_FLEET_(INSTANCE|DATACENTER|CLUSTER|STACK|PULL_[A-Z]*)=' "$2" 2>/dev/null ;;
    identity) grep -E '^GPU_FLEET_(INSTANCE|DATACENTER|CLUSTER)=' "$2" 2>/dev/null ;;
  esac | sha256sum | cut -c 1-64
}

sha256() {
  sha256_line=$(sha256sum <"$1") # without `cut`: it is one process less for each file of a host
  printf '%s\n' "${sha256_line%% *}"
}
