# The state directory: which bundle this host has, with which settings, and everything that was placed here.
#
# $STATE/current      the bundle last applied (a link into bundles/), all that check and remove need
# $STATE/digest stack settings facts    what it was applied with
# $STATE/placed       one line per thing placed: KIND TAB KEY TAB PART TAB A TAB B TAB C, see README.md. A thing is recorded here
#                     before it is placed, so that after an interrupted run the next one knows everything that may exist.
# $STATE/saved        foreign files found at the paths of ours; remove restores them, except those that were put into
#                     directories that we created
# $STATE/undo         a part's state before the run that changes it (undo.sh)
# $STATE/failed       parts whose last apply failed, with the reason
# shellcheck shell=sh

# open_state: scratch directory, counters and signal traps, which every verb needs. The scratch directory is below the state directory
# where that exists, otherwise in the envelope, so that nothing is ever written outside the prefix.
open_state() {
  COUNT_CHANGED=0 COUNT_FAILED=0 COUNT_DRIFT=0 HAS_LOCK=no
  if [ -d "$STATE" ] && [ -w "$STATE" ]; then
    SCRATCH=$STATE/scratch.$$
  else
    SCRATCH=${ENVELOPE:-${TMPDIR:-/tmp}}/scratch.$$
  fi
  trap close_state EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  make_scratch
  if ! need_space; then
    case $VERB in
      check | remove) ;;
      *) refuse ;;
    esac
    # A full disk below the state directory must not stop a check, or a removal, which frees space.
    rm -rf "$SCRATCH"
    SCRATCH=${TMPDIR:-/tmp}/gpu-fleet-scratch.$$
    make_scratch
    need_space || refuse
  fi
  for open_tool in awk sed stat sha256sum tar gzip od find flock; do
    command -v "$open_tool" >/dev/null && continue
    fail unsupported "this host has no $open_tool; install the distribution's package for it (coreutils, tar, gzip, findutils, util-linux)"
    refuse
  done
  if ! command -v curl >/dev/null && ! command -v wget >/dev/null && ! command -v bash >/dev/null; then
    fail unsupported "this host has neither curl nor wget nor bash, one of which is needed to check services; install one"
    refuse
  fi
  : >"$SCRATCH/changed"
  : >"$SCRATCH/metrics"
  PLACED=/dev/null
  [ ! -f "$STATE/placed" ] || PLACED=$STATE/placed
  if [ ! -r "$PLACED" ]; then
    fail no-write "cannot read $PLACED; run as root (sudo)"
    refuse
  fi
}

# clear_scratch: removes what killed runs left. A running check or plan has a living process.
clear_scratch() {
  for clear_left in "$STATE"/scratch.*; do
    kill -0 "${clear_left##*.}" 2>/dev/null || rm -rf "$clear_left"
  done
}

make_scratch() {
  (umask 077 && mkdir "$SCRATCH" "$SCRATCH/manifest" "$SCRATCH/secrets" "$SCRATCH/differing" "$SCRATCH/state") ||
    { say "converge: cannot create a directory for temporary files in ${SCRATCH%/*}"; exit 2; }
  forget_part
}

close_state() {
  rm -rf "$SCRATCH"
  # An apply that was stopped before its first change leaves no trace, nor does a removal that waited for another one, which could not
  # delete this directory with our temporary files in it. One that did not get the lock leaves it: it is another run's.
  if { [ "$VERB" = apply ] || [ "$VERB" = remove ]; } && [ ! -e "$STATE/settings" ]; then
    [ "$HAS_LOCK" = no ] || rm -f "$STATE/lock"
    rmdir "$STATE" 2>/dev/null
  fi
}

# lock_state exclusive|shared: one apply or remove at a time. The kernel releases the lock when its holder ends, so it is never stale.
# Whoever can open a file for reading can lock it: nobody else may.
lock_state() {
  lock_tries=60
  if [ "$1" = exclusive ]; then
    open_lock || return 1
    until flock -n 9 && is_lock_in_place; do
      # Checks share the lock, and hold it only briefly: a timer's check must not stop an apply.
      lock_tries=$((lock_tries - 1))
      if [ "$lock_tries" -eq 0 ] || ! flock -s -n 9; then
        fail locked "another run is in progress on this host: $(cat "$STATE/lock"); retry when it has ended"
        return 1
      fi
      flock -u 9
      sleep 1
      open_lock || return 1
    done
    HAS_LOCK=yes
    printf '%s %s, process %s, since %s\n' converge "$VERB" "$$" "$(date '+%Y-%m-%dT%H:%M:%SZ')" >"$STATE/lock"
  else
    [ -r "$STATE/lock" ] || return 0 # nothing was ever applied here
    exec 9<"$STATE/lock" # a redirection of `exec` that fails would end the shell
    until flock -s -n 9; do
      lock_tries=$((lock_tries - 1))
      if [ "$lock_tries" -eq 0 ]; then
        fail locked "another run has been in progress on this host for a minute: $(cat "$STATE/lock")"
        return 1
      fi
      sleep 1
    done
  fi
}

open_lock() {
  (umask 077 && : >>"$STATE/lock" && chmod 600 "$STATE/lock") || return 1
  exec 9>>"$STATE/lock"
}

# is_lock_in_place: the previous run may have deleted the lock file after we opened it. The next run would create and lock a new file,
# and run at the same time as this one.
is_lock_in_place() {
  # shellcheck disable=SC2046 # one number, or two
  set -- $(stat -L -c %i "/proc/$$/fd/9" "$STATE/lock" 2>/dev/null)
  [ $# -eq 2 ] && [ "$1" = "$2" ]
}

# commit NEW PATH: NEW becomes PATH once its content is on disk. A rename may reach the disk before the data does (XFS; ext4 without
# auto_da_alloc), and after a power cut PATH would be an empty file. Source: ext4(5), auto_da_alloc, read 2026-11-22.
commit() {
  flush "$1" && mv -fT "$1" "$2" && will_flush "${2%/*}"
}

# will_flush PATH: this file or directory, or the directory that it was removed from, must be flushed to disk before this run reports
# its result.
will_flush() {
  printf '%s\n' "$1" >>"$SCRATCH/unflushed"
}

# flush_changes: flushing a directory brings every rename, removal and new name in it to disk.
flush_changes() {
  [ -s "$SCRATCH/unflushed" ] || return 0
  set --
  flush_known=$TAB
  while IFS= read -r flush_path; do
    until [ -e "${flush_path:-/}" ]; do flush_path=${flush_path%/*}; done
    case $flush_known in
      *"$TAB$flush_path$TAB"*) continue ;;
    esac
    flush_known=$flush_known$flush_path$TAB
    set -- "$@" "${flush_path:-/}"
  done <"$SCRATCH/unflushed"
  flush "$@"
  : >"$SCRATCH/unflushed"
}

# flush FILE...: flushes their content to disk. `sync` without arguments waits for everything that a training job is writing, but
# coreutils before 8.24 and some busyboxes have only that.
flush() {
  sync "$@" 2>/dev/null || sync
}

# record NAME...: moves these files of $SCRATCH/state, which is in the state directory, to it, in this order. Unchanged ones are not
# written again, so a run that changes nothing does not wait for the disk.
record() {
  record_old=$(cd "$STATE" && sha256sum "$@" 2>/dev/null)
  record_new=$(cd "$SCRATCH/state" && sha256sum "$@") || return 1
  set --
  while IFS= read -r record_sum; do # and name
    case $record_old in
      *"$record_sum"*) ;;
      *) set -- "$@" "$SCRATCH/state/${record_sum#*  }" ;;
    esac
  done <<EOF
$record_new
EOF
  [ $# -gt 0 ] || return 0
  flush "$@" && mv -f "$@" "$STATE/" && will_flush "$STATE"
}

# placed_update ADD DROP: adds the records in the file ADD (KIND TAB KEY TAB ...), where one of the same kind and key is replaced, and
# drops those that the file DROP names by KIND TAB KEY.
placed_update() {
  [ -s "$1" ] || [ -s "$2" ] || return 0
  [ ! -e "$STATE/placed.new" ] || rm -f "$STATE/placed.new" # of a run that was killed
  (umask 077 && awk -F "$TAB" '
    FILENAME == ARGV[1] { fresh[$1 FS $2] = $0; if (!(($1 FS $2) in at)) { at[$1 FS $2] = ++n; key[n] = $1 FS $2 }; next }
    FILENAME == ARGV[2] { gone[$1 FS $2]; next }
    ($1 FS $2) in fresh { print fresh[$1 FS $2]; delete fresh[$1 FS $2]; next }
    !(($1 FS $2) in gone)
    END { for (i = 1; i <= n; i++) if (key[i] in fresh) print fresh[key[i]] }
  ' "$1" "$2" "$PLACED" >"$STATE/placed.new") || return 1
  commit "$STATE/placed.new" "$STATE/placed" && PLACED=$STATE/placed
}

placed_merge() {
  placed_update "$1" /dev/null
}

placed_forget() {
  placed_update /dev/null "$1"
}

# placed_add KIND KEY PART [A B C]
placed_add() {
  placed_record "$@" >"$SCRATCH/record"
  placed_merge "$SCRATCH/record"
}

placed_record() {
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:--}" "${5:--}" "${6:--}"
}

# placed_get KIND KEY: sets PLACED_A, PLACED_B, PLACED_C; returns 1 when there is no such record.
placed_get() {
  placed_found=$(KIND=$1 KEY=$2 awk -F "$TAB" '$1 == ENVIRON["KIND"] && $2 == ENVIRON["KEY"] { print $4 FS $5 FS $6; exit }' "$PLACED")
  [ -n "$placed_found" ] || return 1
  IFS=$TAB read -r PLACED_A PLACED_B PLACED_C <<EOF
$placed_found
EOF
}

# placed_of PART [KIND]: its records.
placed_of() {
  PART=$1 KIND=${2:-} awk -F "$TAB" '$3 == ENVIRON["PART"] && (ENVIRON["KIND"] == "" || $1 == ENVIRON["KIND"])' "$PLACED"
}

# were_records_lost: then what has our name and no record may be ours.
were_records_lost() {
  placed_get format 1 && [ "$PLACED_A" = lost ]
}

# has_our_name PATH-OR-NAME: accounts with such a name are nobody else's, files may be.
has_our_name() {
  case $1 in
    gpu-fleet | gpu-fleet-* | */gpu-fleet | */gpu-fleet/* | */gpu-fleet-*) ;;
    *) return 1 ;;
  esac
}

# save_foreign PATH: saves a foreign file, to be restored by remove.
save_foreign() {
  attempt "cannot save $PREFIX$1, which is not ours" mkdir -p "$STATE/saved${1%/*}" || return 1
  attempt "cannot save $PREFIX$1, which is not ours" cp -pPR "$PREFIX$1" "$STATE/saved$1" || return 1
  # Its path is ours from now on; if the copy were not yet on disk, a power cut would leave it empty.
  find "$STATE/saved$1" -type f -exec sync {} + 2>/dev/null || sync
}

# record_bundle: stores the bundle and the settings that it is applied with. From here on `remove` works, even if the rest is interrupted.
record_bundle() {
  set -- settings facts
  [ -z "$STACK" ] || { printf '%s\n' "${STACK%% *}" >"$SCRATCH/state/stack" && set -- "$@" stack; } || return 1
  printf '%s\n' "$DIGEST" >"$SCRATCH/state/digest" && set -- "$@" digest || return 1
  (umask 077 && cp "$SCRATCH/settings" "$SCRATCH/facts" "$SCRATCH/state/") || return 1
  # The first record of what was placed, which exists as long as a bundle does: without it, the list was lost.
  if [ "$PLACED" = /dev/null ]; then
    record_lost=
    [ ! -d "$PREFIX/opt/gpu-fleet" ] || record_lost=lost # a removal leaves none, and others have no such directory
    (umask 077 && placed_record format 1 host "$record_lost" >"$SCRATCH/state/placed") && set -- "$@" placed || return 1
  fi
  record "$@" && PLACED=$STATE/placed || return 1
  IFS=$TAB read -r record_kind _ <"$PLACED"
  [ "$record_kind" = format ] || placed_add format 1 host lost || return 1
  [ "$HERE" != "$(cd "$STATE/current" 2>/dev/null && pwd -P)" ] || return 0
  record_copy=$STATE/bundles/$DIGEST
  # A damaged copy is replaced.
  if ! is_intact "$record_copy" || ! is_same "$record_copy/SHA256SUMS" "$HERE/SHA256SUMS"; then
    [ ! -d "$STATE/bundles" ] || rm -rf "$record_copy.new" "$record_copy.old"
    mkdir -p "$STATE/bundles" && cp -R "$HERE" "$record_copy.new" && chmod -R u=rwX,go=rX "$record_copy.new" || return 1
    find "$record_copy.new" -type f -exec sync {} + 2>/dev/null || sync
    [ ! -d "$record_copy" ] || mv "$record_copy" "$record_copy.old" || return 1
    mv "$record_copy.new" "$record_copy" || return 1
    will_flush "$STATE/bundles"
  fi
  if [ "$(readlink "$STATE/current")" != "bundles/$DIGEST" ]; then
    [ ! -L "$STATE/current.new" ] || rm -f "$STATE/current.new"
    ln -s "bundles/$DIGEST" "$STATE/current.new" && mv -fT "$STATE/current.new" "$STATE/current" || return 1
    will_flush "$STATE"
  fi
  for record_old in "$STATE/bundles"/*; do
    [ "$record_old" = "$record_copy" ] || rm -rf "$record_old"
  done
}

# is_same FILE FILE: do they have the same content?
is_same() {
  sha256 "$1"
  has_sha256 "$2" "$SHA256"
}
