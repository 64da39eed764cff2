# Files and directories: how they differ from the bundle, and how they are placed. Nothing is ever written in place.
# shellcheck shell=sh

# file_difference PATH MODE OWNER GROUP SHA256: sets DIFF, empty when there is no difference.
file_difference() {
  file_kind_difference "$1" && ! has_sha256 "$PREFIX$1" "$5" && DIFF="content differs"
  [ -n "$DIFF" ] || meta_difference "$1" "$2" "$3" "$4"
}

# file_kind_difference PATH: sets DIFF and returns 1 unless it is a regular file.
file_kind_difference() {
  DIFF=
  if [ -L "$PREFIX$1" ]; then
    DIFF="is a symbolic link"
  elif [ ! -e "$PREFIX$1" ]; then
    DIFF=missing
  elif [ ! -f "$PREFIX$1" ]; then
    DIFF="is not a file"
  fi
  [ -z "$DIFF" ]
}

meta_difference() {
  meta=$(stat -L -c '%a %U:%G' "$PREFIX$1")
  meta_mode=${meta%% *}
  # On some systems directories inherit set-group-id from their parent, and chmod keeps it; that is not drift.
  [ -d "$PREFIX$1" ] && [ "${#meta_mode}" -eq 4 ] && meta_mode=${meta_mode#?}
  if [ "$meta_mode" != "$2" ]; then
    DIFF="mode is $meta_mode, not $2"
  elif [ "$OWNERS" = yes ] && [ "${meta#* }" != "$3:$4" ]; then
    DIFF="owner is ${meta#* }, not $3:$4"
  else
    attribute_difference "$1"
  fi
}

# dir_difference PATH MODE OWNER GROUP CONTENTS
dir_difference() {
  DIFF=
  if [ -L "$PREFIX$1" ] && [ "$5" != runtime ] && placed_get dir "$1"; then
    # A symbolic link that existed before us, or that redirects our programs' data to another disk, is the administrator's choice.
    DIFF="is a symbolic link"
  elif [ ! -e "$PREFIX$1" ]; then
    DIFF=missing
  elif [ ! -d "$PREFIX$1" ]; then
    DIFF="is not a directory"
  else
    meta_difference "$1" "$2" "$3" "$4"
  fi
}

# new_name PATH: sets NEW, where the next version of a file is written. Always the same name, so that a run after an interrupted one
# overwrites the leftover; hidden and with a suffix that no service reads.
new_name() {
  NEW=$PREFIX${1%/*}/.${1##*/}.gpu-fleet-new
}

# place_file FROM PATH MODE OWNER GROUP
place_file() {
  make_parent "$2" || return 1
  unlock "$2"
  new_name "$2"
  attempt "cannot write $PREFIX$2" copy_private "$1" "$NEW" || { rm -f "$NEW"; return 1; }
  swap_in "$2" "$3" "$4" "$5"
}

# copy_private FROM TO: called only by `attempt`.
copy_private() {
  { [ ! -e "$2" ] && [ ! -L "$2" ]; } || rm -f "$2" || return 1
  umask 077 && exec cat "$1" >"$2"
}

# swap_in PATH MODE OWNER GROUP: $NEW becomes PATH.
swap_in() {
  attempt "cannot set the mode of $PREFIX$1" chmod "$2" "$NEW" || return 1
  set_owner "$1" "$3:$4" "$NEW" || return 1
  # mv would follow a link to a directory and put the file inside.
  [ ! -L "$PREFIX$1" ] || rm -f "$PREFIX$1"
  flush "$NEW" # as `commit` does
  attempt "cannot write $PREFIX$1" mv -fT "$NEW" "$PREFIX$1" && will_flush "$PREFIX${1%/*}"
}

# set_owner PATH OWNER:GROUP NEW [OPTIONS]: of NEW, which is or becomes PATH. Most things belong to root and were created so, except in a
# directory that passes its own group on.
set_owner() {
  [ "$OWNERS" = yes ] || return 0
  [ "$2" != root:root ] || [ ! -O "$3" ] || [ ! -G "$3" ] || return 0
  # shellcheck disable=SC2086 # no option or one
  attempt "cannot set the owner of $PREFIX$1 to $2" chown ${4:-} "$2" "$3"
}

# make_parent PATH: creates the missing directories above it, which record_part has recorded.
make_parent() {
  missing_parents "$1"
  [ -n "$MISSING" ] || return 0
  attempt "cannot create the directory of $PREFIX$1" mkdir -p "$PREFIX${1%/*}" || return 1
  for parent in $MISSING; do
    will_flush "$PREFIX${parent%/*}"
    label "$parent"
  done
}

# missing_parents PATH: sets MISSING to the directories above it that do not exist, separated by blanks.
missing_parents() {
  MISSING='' parent=${1%/*}
  while [ -n "$parent" ] && [ ! -d "$PREFIX$parent" ]; do
    MISSING="$MISSING $parent"
    parent=${parent%/*}
  done
}

# label DIRECTORY: gives a new directory the label that SELinux's policy has for its path; files created in it inherit the label.
# systemd starts programs in /opt/gpu-fleet/bin and libexec in their own domain (unconfined_service_t) only where that label is bin_t;
# otherwise they would run in systemd's domain (init_t), with its permissions and restrictions.
# Source: corecommands.fc and unconfinedservice.te of fedora-selinux/selinux-policy, read 2026-11-21.
label() {
  ! command -v restorecon >/dev/null || restorecon "$PREFIX$1" >/dev/null 2>&1 </dev/null || :
}

# place_dir PATH MODE OWNER GROUP CONTENTS
place_dir() {
  place_whole=
  unlock "$1"
  if [ -L "$PREFIX$1" ] && [ "$5" != runtime ] && placed_get dir "$1"; then
    attempt "cannot replace the link $PREFIX$1 by a directory" replace_link "$1" || return 1
  fi
  if [ ! -d "$PREFIX$1" ]; then
    # A file or dangling link in place of a directory of ours is only a change to our installation.
    { [ ! -e "$PREFIX$1" ] && [ ! -L "$PREFIX$1" ]; } || ! placed_get dir "$1" || rm -f "$PREFIX$1"
    make_parent "$1"
    attempt "cannot create the directory $PREFIX$1" mkdir -m "$2" "$PREFIX$1" || return 1
    label "$1"
  else
    attempt "cannot set the mode of $PREFIX$1" chmod "$2" "$PREFIX$1" || return 1
    # The files in it may belong to an account that no longer exists.
    [ "$5" != runtime ] || ! placed_get dir "$1" || [ "$(stat -c %U:%G "$PREFIX$1")" = "$3:$4" ] || place_whole=-hR
  fi
  will_flush "$PREFIX$1"
  will_flush "$PREFIX${1%/*}"
  set_owner "$1" "$3:$4" "$PREFIX$1" "$place_whole"
}

# replace_link PATH: replaces the link by a directory with the content of its target: differences were determined through the link.
replace_link() {
  new_name "$1"
  rm -rf "$NEW"
  mkdir "$NEW" && { [ ! -d "$PREFIX$1" ] || cp -pPR "$PREFIX$1/." "$NEW/"; } && rm -f "$PREFIX$1" && mv "$NEW" "$PREFIX$1"
}

# drop_file PATH: removes what we placed, and a half-written next version of it.
drop_file() {
  unlock "$1"
  new_name "$1"
  will_flush "$PREFIX${1%/*}"
  attempt "cannot remove $PREFIX$1" rm -f "$PREFIX$1" "$NEW"
}

# drop_dir PATH: a directory that our programs filled.
drop_dir() {
  unlock "$1"
  will_flush "$PREFIX${1%/*}"
  attempt "cannot remove $PREFIX$1" rm -rf "$PREFIX$1"
}

# sweep_directories: removes those that we made and no wanted part needs.
sweep_directories() {
  awk -F "$TAB" 'FILENAME == ARGV[1] { wanted[$1 FS $2]; next } $1 == "dir" && !(($1 FS $2) in wanted)' \
    "$SCRATCH/expected" "$PLACED" >"$SCRATCH/sweep"
  sweep "$SCRATCH/sweep"
}

# sweep RECORDS: removes these directories, deepest first, where they are empty. One that holds foreign files stays.
sweep() {
  [ -s "$1" ] || return 0
  sort -r "$1" >"$SCRATCH/sweeping"
  while IFS=$TAB read -r _ sweep_path _; do
    if [ -L "$PREFIX$sweep_path" ]; then
      rm -f "$PREFIX$sweep_path"
    elif [ -d "$PREFIX$sweep_path" ]; then
      rmdir "$PREFIX$sweep_path" 2>/dev/null || continue
    fi
    will_flush "$PREFIX${sweep_path%/*}"
    printf 'dir\t%s\n' "$sweep_path"
  done <"$SCRATCH/sweeping" >"$SCRATCH/swept"
  placed_forget "$SCRATCH/swept"
}
