# Shared by the installer and gpu-fleet-pull: fetches and verifies the newest publication and applies it with its own converge program.
# The sourcing script sets PREFIX, ORIGIN (URL or directory), KEYS (the trusted public keys, separated by commas, the spare key after
# the word `spare`), STACK (the stack of the publications), FLOOR (the oldest version accepted) and FORMER_STACK (the previous
# datacenter/cluster, empty on a host that did not pull from this stack). A function that fails sets PROBLEM, one sentence, and returns 1.
#
# Nothing that was fetched is run or unpacked before the signature of the index and the sha256 in it have been verified.
# shellcheck shell=sh
# The environment is that of libexec/environment, which the sourcing script has read before.

# Limits on what an origin can make us store. The bundle's own size is in the signed index.
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
      ssh-keygen) problem "this host has no ssh-keygen, which verifies signatures; install OpenSSH's client (openssh-client, openssh-clients)" ;;
      *) problem "this host has no $tool; install the package that contains it" ;;
    esac
    return 1
  done
}

# sweep_work: removes what killed runs left, including secrets. A run holds the lock of its working directory, as in the provider's
# bootstrap.sh.
sweep_work() {
  for left in "$STATE"/incoming.*; do
    [ -d "$left" ] && flock -n "$left" true 2>/dev/null && rm -rf "$left"
  done
}

# open_work: creates WORK, a temporary directory that is removed on exit.
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
  # Where nothing was installed, nothing is left behind.
  rmdir "$STATE" "$PREFIX/var/lib" "$PREFIX/var" 2>/dev/null
}

# take_lock SECONDS: one run at a time. Child processes that outlive us do not inherit the descriptor. busybox's flock cannot wait.
take_lock() {
  exec 8>>"$PULL/lock" || return 1
  lock_tries=$1
  until flock -n 8; do
    lock_tries=$((lock_tries - 1))
    [ "$lock_tries" -gt 0 ] || problem "another run is in progress on this host; wait for it to end and try again" || return 1
    sleep 1
  done
}

# --- on disk ---------------------------------------------------------------------------------------------------------------------

# keep FILE <TEXT: replaces FILE so that a power cut leaves either the old or the new one. `sync FILE` avoids waiting for everything
# that other programs are writing; old versions of sync cannot do that.
keep() {
  cat >"$1.new" && flush "$1.new" && mv -fT "$1.new" "$1"
}

flush() {
  sync "$@" 2>/dev/null || sync
}

# has_result REPORT VERB: did converge report success? An exit code of 0 without a result means that the program was damaged or missing.
has_result() {
  grep -q "^{\"event\":\"result\",\"verb\":\"$2\",\"ok\":true," "$1"
}

# --- fetching -------------------------------------------------------------------------------------------------------------------

# fetch NAME FILE BYTES: fetches NAME from the origin, at most so many bytes.
fetch() {
  rm -f "$2.failed"
  # Without the lock's descriptor: busybox's timeout leaves a process for a moment.
  if ! { transfer "$1" 2>"$2.said" 7<&- 8>&- || : >"$2.failed"; } | head -c "$(($3 + 1))" 2>/dev/null >"$2"; then
    problem "cannot store $ORIGIN/$1 below $STATE; free some space"
    return 1
  fi
  if [ "$(wc -c <"$2")" -gt "$3" ]; then
    problem "$ORIGIN/$1 is larger than the limit of $3 bytes"
  elif [ -e "$2.failed" ]; then
    fetched_said=$(tail -n 1 "$2.said")
    problem "cannot get $ORIGIN/$1: ${fetched_said:-wget printed no reason; the file may not exist}"
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
    echo "this host has neither curl nor wget; install one" >&2
    return 1
  fi
}

# fetch_verified NAME FILE BYTES SHA256
fetch_verified() {
  fetch "$1" "$2" "$3" || return 1
  fetched_sum=$(sha256 "$2")
  [ "$fetched_sum" = "$4" ] && return 0
  rm -f "$2"
  problem "$ORIGIN/$1 is not what was published: its sha256 is $fetched_sum, not $4; it was not run"
}

sha256() {
  sha256sum <"$1" | cut -c 1-64
}

# --- the index: describes the newest publication, in one file with its signature, so that the two always match ----------------------

# read_index: INDEX, the verified text; VERSION, EXPIRES, BUNDLE and BUNDLE_BYTES as it gives them; NEXT_KEYS, those trusted from now on.
read_index() {
  fetch latest "$WORK/latest" "$INDEX_BYTES" || return 1
  INDEX=$WORK/index
  sed '/^-----BEGIN SSH SIGNATURE-----$/,$d' "$WORK/latest" >"$INDEX"
  verify_index || return 1
  if [ "$(head -n 1 "$INDEX")" != "gpu-fleet 1" ]; then
    problem "$ORIGIN/latest has a format that this program cannot read; reinstall with the installer published beside it"
    return 1
  fi
  index_stack=$(indexed stack)
  VERSION=$(indexed version)
  EXPIRES=$(indexed expires)
  BUNDLE=$(indexed bundle | cut -d ' ' -f 1)
  BUNDLE_BYTES=$(indexed bundle | cut -d ' ' -f 2)
  now=$(date +%s)
  if [ "$index_stack" != "$STACK" ]; then
    problem "$ORIGIN/latest belongs to stack $index_stack, but this host belongs to $STACK; nothing was run"
  elif ! is_number "$VERSION" || ! is_number "$EXPIRES"; then
    problem "$ORIGIN/latest has no version or no expiry time; publish it again with the release that this host has, or a newer one"
  elif [ "$VERSION" -gt "$((now + 86400))" ]; then
    # Otherwise one index with a huge version, signed with a stolen key, would make every later one too old forever.
    problem "$ORIGIN/latest was published on $(at_time "$VERSION"), but this host's clock says $(at_time "$now"): correct the clock; if it is right, publish again on a machine with a correct clock; nothing was run"
  elif [ "$VERSION" -lt "$FLOOR" ]; then
    problem "$ORIGIN/latest is older (version $VERSION) than one seen before ($FLOOR): an old copy, or a replay attack; nothing was run"
  elif [ "$EXPIRES" -lt "$now" ]; then
    problem "$ORIGIN/latest expired on $(at_time "$EXPIRES"): publish again (make pull-bundle), or find out which server delivers an old copy; nothing was run"
  else
    next_keys
  fi
}

# verify_index: sets SIGNER to `key` or `spare`, the trusted key that signed. Each signature is by one key.
verify_index() {
  rm -f "$INDEX.sig".*
  awk -v to="$INDEX.sig." '/^-----BEGIN SSH SIGNATURE-----$/ { n++ } n && n < 9 { print >(to n) }' "$WORK/latest"
  printf '%s\n' "$KEYS" | tr , '\n' >"$WORK/keys" # the spare one is the first
  echo "it has no signature" >"$WORK/said"
  while IFS= read -r key; do
    case $key in spare*) SIGNER=spare ;; *) SIGNER=key ;; esac
    printf 'gpu-fleet namespaces="gpu-fleet" %s\n' "${key#spare }" >"$WORK/signers"
    for signature in "$INDEX.sig".*; do
      [ -f "$signature" ] || continue
      ssh-keygen -Y verify -f "$WORK/signers" -I gpu-fleet -n gpu-fleet -s "$signature" <"$INDEX" >"$WORK/said" 2>&1 && return 0
    done
  done <"$WORK/keys"
  case $(cat "$WORK/said") in
    *option*) problem "this host's ssh-keygen cannot verify signatures; OpenSSH 8.1 or newer is needed" ;;
    *) problem "$ORIGIN/latest does not have a valid signature by this fleet's key ($(tail -n 1 "$WORK/said" | cut -c 1-200)); nothing was run" ;;
  esac
}

# next_keys: the keys listed in the index replace ours. Only an index signed by the spare key can replace the spare key, so that a thief
# of the key in use cannot lock it out.
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

# remember_index: stores what later runs compare with.
remember_index() {
  if ! { echo "$VERSION" | keep "$PULL/version"; } || ! { echo "$NEXT_KEYS" | keep "$PULL/keys"; } || ! { echo "$EXPIRES" | keep "$PULL/expires"; }; then
    problem "cannot write below $STATE; free some space"
  fi
}

# seen_version: the version seen last. A file that is empty or damaged is ignored; then it is the version of the bundle that runs. It
# was compared with the clock when it was taken (read_index), and not again: a clock that went back must not let an old copy in.
seen_version() {
  for seen_file in version good/version; do
    seen=$(cat "$PULL/$seen_file" 2>/dev/null)
    if is_number "$seen"; then
      echo "$seen"
      return
    fi
  done
  echo 0
}

# recover_good: recovers from a power cut between the two renames of keep_good.
recover_good() {
  [ -d "$PULL/good" ] || [ ! -d "$PULL/good.old" ] || mv "$PULL/good.old" "$PULL/good"
}

# is_number TEXT: at most twelve digits, which any sh can compute with.
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

# merge_settings FILE...: NAME=value lines, later ones override earlier ones. Sorted, as converge stores them.
merge_settings() {
  awk '{ name = $0; sub(/=.*/, "", name); line[name] = $0 } END { for (name in line) print line[name] }' "$@" | sort
}

# apply_envelope ENVELOPE [offline]: returns converge's exit code; its output is in ENVELOPE/report, and PROBLEM has the first cause.
# With `offline`, a file that cannot be fetched fails only the part that needs it.
apply_envelope() {
  if ! { mkdir -p "$1/bundle" "$1/artifacts" && tar -xf "$1/bundle.tar" -C "$1/bundle"; } 2>"$WORK/said"; then
    problem "cannot unpack the bundle: $(tail -n 1 "$WORK/said")"
    return 1
  fi
  get_artifacts "$1" || [ "${2:-}" = offline ] || return 1
  # A host that already pulls from this stack may get another datacenter or cluster.
  apply_stack="$(sed -n 's/^GPU_FLEET_STACK=//p' "$1/settings") $FORMER_STACK"
  sh "$1/bundle/converge" apply --prefix "$PREFIX" --envelope "$1" --artifacts "$PULL/good/artifacts" --stack "$apply_stack" \
    >"$1/report" </dev/null 7<&- 8>&-
  apply_code=$?
  [ "$apply_code" -ne 0 ] || has_result "$1/report" apply || apply_code=1
  [ "$apply_code" -eq 0 ] || problem "$(first_cause "$1/report")"
  return "$apply_code"
}

# get_artifacts ENVELOPE: fetches the programs that this host lacks and that the bundle does not download from upstream.
get_artifacts() {
  for artifact in $(sh "$1/bundle/converge" needs --prefix "$PREFIX" --envelope "$1" 2>/dev/null </dev/null 7<&- 8>&-); do
    [ ! -f "$PULL/good/artifacts/$artifact" ] || continue
    say "fetching a program ($artifact)"
    fetch_verified "artifacts/$artifact" "$1/artifacts/$artifact" "$ARTIFACT_BYTES" "$artifact" || return 1
  done
}

first_cause() {
  # The first line of the message, extracted from its JSON.
  cause=$(sed -n 's/.*"part":"\([^"]*\)","status":"failed".*"message":"\([^"\\]*\(\\.[^"\\]*\)*\)".*/\1: \2/p' "$1" |
    sed -e 's/\\n.*//' -e 's/\\\(["\\]\)/\1/g' | head -n 1)
  printf '%s' "${cause:-the converge program ended without a result}"
}

# keep_good ENVELOPE: stores an envelope that came up, to roll back to when a later one does not.
keep_good() {
  rm -rf "$1/bundle" "$1/artifacts" "$PULL/good.old"
  echo "$VERSION" >"$1/version"
  find "$1" -type f -exec sync {} + 2>/dev/null || sync
  [ ! -d "$PULL/good" ] || mv "$PULL/good" "$PULL/good.old"
  mv "$1" "$PULL/good" && rm -rf "$PULL/good.old"
}

# report ok|failed TEXT: on the terminal, for --status, and as metrics, since nobody logs in to these hosts.
report() {
  if [ -d "$PULL" ]; then
    printf '%s\n%s\n%s\n' "$(date -u '+%Y-%m-%d %H:%M:%S UTC')" "$1" "$2" >"$PULL/status"
    [ "$1" != ok ] || date +%s >"$PULL/succeeded"
    if [ "$1" = ok ]; then write_metrics 1; else write_metrics 0; fi
  fi
  say "$2"
}

# write_metrics 1|0: for node_exporter's textfile collector. With -T, since other users may write in that directory too.
write_metrics() {
  [ -d "$STATE/textfile" ] || return 0
  {
    gauge success "$1" "1 when the last run applied the newest publication or found it already applied."
    gauge timestamp_seconds "$(date +%s)" "When the last run ended."
    gauge last_success_timestamp_seconds "$(cat "$PULL/succeeded" 2>/dev/null)" "When a run last succeeded."
    gauge version "$(cat "$PULL/good/version" 2>/dev/null)" "Version of the applied publication: the time when it was published."
    gauge seen_version "$(seen_version)" "Version of the newest publication seen."
    gauge expires_timestamp_seconds "$(cat "$PULL/expires" 2>/dev/null)" "When the newest publication seen expires."
  } >"$PULL/metrics"
  chmod 0644 "$PULL/metrics" && mv -fT "$PULL/metrics" "$STATE/textfile/fleet_pull.prom"
}

# gauge NAME VALUE HELP: prints nothing when there is no value yet.
gauge() {
  is_number "$2" || return 0
  printf '# HELP gpu_fleet_pull_%s %s\n# TYPE gpu_fleet_pull_%s gauge\ngpu_fleet_pull_%s %s\n' "$1" "$3" "$1" "$1" "$2"
}
