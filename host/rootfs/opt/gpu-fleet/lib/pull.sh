# What the installer and gpu-fleet-pull share: the newest publication, fetched, verified, and applied by its own converge program.
# Whoever reads this sets PREFIX, ORIGIN (URL or directory), KEYS (the public keys trusted, with commas between them, the spare one
# after the word `spare`), STACK (whose publications), FLOOR (the oldest version accepted) and FORMER_STACK (datacenter/cluster so far, empty on a host
# that did not pull from this stack). A function that fails sets PROBLEM, one sentence, and returns 1.
#
# Nothing that was fetched is run or unpacked before the signature of the index and the sha256 it gives have been checked.
# shellcheck shell=sh
LC_ALL=C
export LC_ALL
umask 077

# Bounds of what an origin can make us store. The bundle's own size is in the signed index.
INDEX_BYTES=65536
ARTIFACT_BYTES=2147483648

state_paths() {
  STATE=$PREFIX/var/lib/gpu-fleet
  PULL=$STATE/pull
}

say() {
  printf '%s\n' "$*" >&2
}

problem() {
  PROBLEM=$*
  return 1
}

need_tools() {
  for tool in awk sed tar sha256sum flock mktemp timeout ssh-keygen; do
    command -v "$tool" >/dev/null && continue
    case $tool in
      ssh-keygen) problem "this host has no ssh-keygen, which checks signatures; install OpenSSH's client (openssh-client, openssh-clients)" ;;
      *) problem "this host has no $tool; install the package it comes in" ;;
    esac
    return 1
  done
}

# sweep_work: removes what killed runs left, secrets among it. A run holds the lock of the directory that it works in, as the
# provider's bootstrap.sh does.
sweep_work() {
  for left in "$STATE"/incoming.*; do
    [ -d "$left" ] && flock -n "$left" true 2>/dev/null && rm -rf "$left"
  done
}

# open_work: WORK, a directory of our own, removed when we end.
open_work() {
  WORK=
  trap close_work EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  (umask 022 && mkdir -p "$STATE") 2>/dev/null
  sweep_work
  WORK=$(mktemp -d "$STATE/incoming.XXXXXX" 2>/dev/null) || problem "cannot write below $STATE; run as root (sudo), or free some space" || return 1
  exec 7<"$WORK"
  flock -s 7 2>/dev/null || : # without it only the lock of the pull itself keeps others away
}

close_work() {
  [ -z "$WORK" ] || rm -rf "$WORK"
  # Where nothing was installed, nothing stays.
  rmdir "$STATE" "$PREFIX/var/lib" "$PREFIX/var" 2>/dev/null
}

# take_lock SECONDS: one run at a time. The descriptor is closed for whatever outlives us. busybox's flock cannot wait by itself.
take_lock() {
  exec 8>>"$PULL/lock" || return 1
  lock_tries=$1
  until flock -n 8; do
    lock_tries=$((lock_tries - 1))
    [ "$lock_tries" -gt 0 ] || problem "another run is at work here; wait for it to end and try again" || return 1
    sleep 1
  done
}

# --- on disk ---------------------------------------------------------------------------------------------------------------------

# keep FILE <TEXT: FILE is the old one or the new one, whatever a power cut does. Files are named to sync, which else waits for all that
# other programs are writing; old ones know no other way.
keep() {
  cat >"$1.new" && flush "$1.new" && mv -fT "$1.new" "$1"
}

flush() {
  sync "$@" 2>/dev/null || sync
}

# has_result REPORT VERB: did converge say that it did all of it? One that ends well without that word was not there to do anything.
has_result() {
  grep -q "^{\"event\":\"result\",\"verb\":\"$2\",\"ok\":true," "$1"
}

# --- fetching -------------------------------------------------------------------------------------------------------------------

# fetch NAME FILE BYTES: NAME below the origin, at most so large.
fetch() {
  rm -f "$2.failed"
  # Without the lock's descriptor: busybox's timeout leaves a process for a moment.
  if ! { transfer "$1" 2>"$2.said" 7<&- 8>&- || : >"$2.failed"; } | head -c "$(($3 + 1))" 2>/dev/null >"$2"; then
    problem "cannot store $ORIGIN/$1 below $STATE; free some space"
    return 1
  fi
  if [ "$(wc -c <"$2")" -gt "$3" ]; then
    problem "$ORIGIN/$1 is larger than the $3 bytes it may have"
  elif [ -e "$2.failed" ]; then
    fetched_said=$(tail -n 1 "$2.said")
    problem "cannot get $ORIGIN/$1: ${fetched_said:-wget gave no reason; it may not be there}"
  fi
}

transfer() {
  case $ORIGIN in
    http://* | https://*) download "$ORIGIN/$1" ;;
    *) cat -- "${ORIGIN#file://}/$1" ;;
  esac
}

download() {
  if command -v curl >/dev/null; then
    curl -fsSL --proto '=http,https' --retry 2 --connect-timeout 20 --speed-limit 1024 --speed-time 60 "$1" </dev/null
  elif command -v wget >/dev/null; then
    timeout 1800 wget -q -O - "$1" </dev/null
  else
    echo "neither curl nor wget is on this host; install one" >&2
    return 1
  fi
}

# fetch_verified NAME FILE BYTES SHA256
fetch_verified() {
  fetch "$1" "$2" "$3" || return 1
  fetched_sum=$(sha256 "$2")
  [ "$fetched_sum" = "$4" ] && return 0
  rm -f "$2"
  problem "$ORIGIN/$1 is not what was published: its sha256 is $fetched_sum, not $4; nothing of it was run"
}

sha256() {
  sha256sum <"$1" | cut -c 1-64
}

# --- the index: the newest publication, in one file with its signature, so that the two never come from different moments ------------

# read_index: INDEX, the verified text; VERSION, EXPIRES, BUNDLE and BUNDLE_BYTES as it gives them; NEXT_KEYS, those trusted from now on.
read_index() {
  fetch latest "$WORK/latest" "$INDEX_BYTES" || return 1
  INDEX=$WORK/index
  sed '/^-----BEGIN SSH SIGNATURE-----$/,$d' "$WORK/latest" >"$INDEX"
  verify_index || return 1
  if [ "$(head -n 1 "$INDEX")" != "gpu-fleet 1" ]; then
    problem "$ORIGIN/latest has a format that this program does not read; install again with the installer beside it"
    return 1
  fi
  index_stack=$(indexed stack)
  VERSION=$(indexed version)
  EXPIRES=$(indexed expires)
  BUNDLE=$(indexed bundle | cut -d ' ' -f 1)
  BUNDLE_BYTES=$(indexed bundle | cut -d ' ' -f 2)
  now=$(date +%s)
  if [ "$index_stack" != "$STACK" ]; then
    problem "$ORIGIN/latest is of stack $index_stack, and this host belongs to $STACK; nothing was run"
  elif ! is_number "$VERSION" || ! is_number "$EXPIRES"; then
    problem "$ORIGIN/latest has no version or no time of expiry; publish it again with the release that this host has, or a newer one"
  elif [ "$VERSION" -gt "$((now + 86400))" ]; then
    # Otherwise one index with a huge version, signed with a stolen key, would make every later one too old for ever.
    problem "$ORIGIN/latest was published on $(at_time "$VERSION"), and this host's clock says $(at_time "$now"): correct the clock; where it is right, publish again on a machine whose clock is; nothing was run"
  elif [ "$VERSION" -lt "$FLOOR" ]; then
    problem "$ORIGIN/latest is older (version $VERSION) than what was seen before ($FLOOR): an old copy, or somebody replays it; nothing was run"
  elif [ "$EXPIRES" -lt "$now" ]; then
    problem "$ORIGIN/latest expired on $(at_time "$EXPIRES"): publish again (make pull-bundle), or look for who serves an old copy; nothing was run"
  else
    next_keys
  fi
}

# verify_index: SIGNER, `key` or `spare`, which of ours signed. Each signature is by one key.
verify_index() {
  rm -f "$INDEX.sig".*
  awk -v to="$INDEX.sig." '/^-----BEGIN SSH SIGNATURE-----$/ { n++ } n && n < 9 { print >(to n) }' "$WORK/latest"
  printf '%s\n' "$KEYS" | tr , '\n' >"$WORK/keys" # the spare one is the first
  echo "it has none" >"$WORK/said"
  while IFS= read -r key; do
    case $key in spare*) SIGNER=spare ;; *) SIGNER=key ;; esac
    printf 'gpu-fleet namespaces="gpu-fleet" %s\n' "${key#spare }" >"$WORK/signers"
    for signature in "$INDEX.sig".*; do
      [ -f "$signature" ] || continue
      ssh-keygen -Y verify -f "$WORK/signers" -I gpu-fleet -n gpu-fleet -s "$signature" <"$INDEX" >"$WORK/said" 2>&1 && return 0
    done
  done <"$WORK/keys"
  case $(cat "$WORK/said") in
    *option*) problem "this host's ssh-keygen cannot check signatures; OpenSSH 8.1 or newer is needed" ;;
    *) problem "$ORIGIN/latest does not have a signature of this fleet's key ($(tail -n 1 "$WORK/said" | cut -c 1-200)); nothing was run" ;;
  esac
}

# next_keys: the keys that the index lists replace ours. A spare key is replaced by itself alone: so whoever steals the key in use cannot
# shut out the spare one.
next_keys() {
  NEXT_KEYS=$KEYS
  grep -q '^key ' "$INDEX" || return 0
  if [ "$SIGNER" = key ] && grep -q '^spare ' "$WORK/keys"; then
    grep '^spare ' "$WORK/keys"
  else
    grep '^spare ' "$INDEX"
  fi >"$WORK/next"
  indexed key >>"$WORK/next"
  NEXT_KEYS=$(tr '\n' , <"$WORK/next")
  NEXT_KEYS=${NEXT_KEYS%,}
}

# remember_index: what later runs compare with.
remember_index() {
  if ! { echo "$VERSION" | keep "$PULL/version"; } || ! { echo "$NEXT_KEYS" | keep "$PULL/keys"; } || ! { echo "$EXPIRES" | keep "$PULL/expires"; }; then
    problem "cannot write below $STATE; free some space"
  fi
}

# seen_version: the version seen last. A file that is empty or damaged, or that a forged index filled, counts for nothing: then it is
# that of the bundle that runs.
seen_version() {
  for seen_file in version good/version; do
    seen=$(cat "$PULL/$seen_file" 2>/dev/null)
    if is_number "$seen" && [ "$seen" -le "$(($(date +%s) + 86400))" ]; then
      echo "$seen"
      return
    fi
  done
  echo 0
}

# recover_good: a power cut between the two renames of keep_good.
recover_good() {
  [ -d "$PULL/good" ] || [ ! -d "$PULL/good.old" ] || mv "$PULL/good.old" "$PULL/good"
}

# is_number TEXT: of at most twelve digits, which sh can count with.
is_number() {
  case $1 in
    '' | *[!0-9]* | ?????????????*) return 1 ;;
  esac
}

at_time() {
  date -u -d "@$1" '+%Y-%m-%d %H:%M UTC'
}

indexed() {
  sed -n "s/^$1 //p" "$INDEX"
}

# --- an envelope, as converge takes it: bundle.tar, settings, secrets/ ---------------------------------------------------------------

# get_bundle ENVELOPE
get_bundle() {
  if [ -f "$PULL/good/bundle.tar" ] && [ "$(sha256 "$PULL/good/bundle.tar")" = "$BUNDLE" ]; then
    cp "$PULL/good/bundle.tar" "$1/bundle.tar" || problem "cannot write below $STATE; free some space"
  else
    fetch_verified "bundle-$BUNDLE.tar" "$1/bundle.tar" "$BUNDLE_BYTES" "$BUNDLE"
  fi
}

# merge_settings FILE...: NAME=value lines, the later wins. Sorted, as converge keeps them.
merge_settings() {
  awk '{ name = $0; sub(/=.*/, "", name); line[name] = $0 } END { for (name in line) print line[name] }' "$@" | sort
}

# apply_envelope ENVELOPE [offline]: returns converge's code; what it told is in ENVELOPE/report, and PROBLEM has the first cause.
# With `offline` what cannot be fetched stops only the part that needs it.
apply_envelope() {
  if ! { mkdir -p "$1/bundle" "$1/artifacts" && tar -xf "$1/bundle.tar" -C "$1/bundle"; } 2>"$WORK/said"; then
    problem "cannot unpack the bundle: $(tail -n 1 "$WORK/said")"
    return 1
  fi
  get_artifacts "$1" || [ "${2:-}" = offline ] || return 1
  # A host that pulls from this stack already may get another datacenter or cluster.
  apply_stack="$(sed -n 's/^GPU_FLEET_STACK=//p' "$1/settings") $FORMER_STACK"
  sh "$1/bundle/converge" apply --prefix "$PREFIX" --envelope "$1" --artifacts "$PULL/good/artifacts" --stack "$apply_stack" \
    >"$1/report" </dev/null 7<&- 8>&-
  apply_code=$?
  [ "$apply_code" -ne 0 ] || has_result "$1/report" apply || apply_code=1
  [ "$apply_code" -eq 0 ] || problem "$(first_cause "$1/report")"
  return "$apply_code"
}

# get_artifacts ENVELOPE: the programs that the bundle does not download from their makers, where this host lacks them.
get_artifacts() {
  for artifact in $(sh "$1/bundle/converge" needs --prefix "$PREFIX" --envelope "$1" 2>/dev/null </dev/null 7<&- 8>&-); do
    [ ! -f "$PULL/good/artifacts/$artifact" ] || continue
    say "fetching a program ($artifact)"
    fetch_verified "artifacts/$artifact" "$1/artifacts/$artifact" "$ARTIFACT_BYTES" "$artifact" || return 1
  done
}

first_cause() {
  # The message's first line, out of its JSON.
  cause=$(sed -n 's/.*"part":"\([^"]*\)","status":"failed".*"message":"\([^"\\]*\(\\.[^"\\]*\)*\)".*/\1: \2/p' "$1" |
    sed -e 's/\\n.*//' -e 's/\\\(["\\]\)/\1/g' | head -n 1)
  printf '%s' "${cause:-the converge program ended without a result}"
}

# keep_good ENVELOPE: what came up is what a later one that does not is rolled back to.
keep_good() {
  rm -rf "$1/bundle" "$1/artifacts" "$PULL/good.old"
  echo "$VERSION" >"$1/version"
  find "$1" -type f -exec sync {} + 2>/dev/null || sync
  [ ! -d "$PULL/good" ] || mv "$PULL/good" "$PULL/good.old"
  mv "$1" "$PULL/good" && rm -rf "$PULL/good.old"
}

# tell ok|failed TEXT: on the terminal, for --status, and as metrics, since nobody logs in to these hosts.
tell() {
  if [ -d "$PULL" ]; then
    printf '%s\n%s\n%s\n' "$(date -u '+%Y-%m-%d %H:%M:%S UTC')" "$1" "$2" >"$PULL/status"
    [ "$1" != ok ] || date +%s >"$PULL/succeeded"
    if [ "$1" = ok ]; then write_metrics 1; else write_metrics 0; fi
  fi
  say "$2"
}

# write_metrics 1|0: for the textfile collector of node_exporter. With -T, since others may write in that directory too.
write_metrics() {
  [ -d "$STATE/textfile" ] || return 0
  {
    gauge success "$1" "1 when the last run brought this host to the newest publication, or found it there."
    gauge timestamp_seconds "$(date +%s)" "When the last run ended."
    gauge last_success_timestamp_seconds "$(cat "$PULL/succeeded" 2>/dev/null)" "When a run last ended well."
    gauge version "$(cat "$PULL/good/version" 2>/dev/null)" "Version of the publication that runs here: when it was published."
    gauge seen_version "$(seen_version)" "Version of the newest publication seen."
    gauge expires_timestamp_seconds "$(cat "$PULL/expires" 2>/dev/null)" "When the newest publication seen expires."
  } >"$PULL/metrics"
  chmod 0644 "$PULL/metrics" && mv -fT "$PULL/metrics" "$STATE/textfile/fleet_pull.prom"
}

# gauge NAME VALUE HELP: nothing where there is no value yet.
gauge() {
  is_number "$2" || return 0
  printf '# HELP gpu_fleet_pull_%s %s\n# TYPE gpu_fleet_pull_%s gauge\ngpu_fleet_pull_%s %s\n' "$1" "$3" "$1" "$1" "$2"
}
