# Files and directories: how they differ from what the bundle says, and how they get there. Nothing is ever written in place.
# shellcheck shell=sh

# file_difference PATH MODE OWNER GROUP SHA256: sets DIFF, empty when all is as it should be.
file_difference() {
  file_kind_difference "$1" && [ "$(sha256 "$PREFIX$1")" != "$5" ] && DIFF="content differs"
  [ -n "$DIFF" ] || meta_difference "$1" "$2" "$3" "$4"
}

# file_kind_difference PATH: DIFF and 1 when there is no ordinary file.
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
  # Directories inherit set-group-id from their parent on some systems, and chmod leaves it; that is not drift.
  [ -d "$PREFIX$1" ] && [ "${#meta_mode}" -eq 4 ] && meta_mode=${meta_mode#?}
  if [ "$meta_mode" != "$2" ]; then
    DIFF="mode is $meta_mode, not $2"
  elif [ "$OWNERS" = yes ] && [ "${meta#* }" != "$3:$4" ]; then
    DIFF="owner is ${meta#* }, not $3:$4"
  fi
}

# dir_difference PATH MODE OWNER GROUP
dir_difference() {
  DIFF=
  if [ -L "$PREFIX$1" ] && placed_get dir "$1"; then
    DIFF="is a symbolic link" # one that was there before us is the administrator's choice
  elif [ ! -e "$PREFIX$1" ]; then
    DIFF=missing
  elif [ ! -d "$PREFIX$1" ]; then
    DIFF="is not a directory"
  else
    meta_difference "$1" "$2" "$3" "$4"
  fi
}

# new_name PATH: sets NEW, where the next version of a file is written. Always the same name, so that a run after an interrupted one
# overwrites what was left; hidden and with an ending that no service reads.
new_name() {
  NEW=$PREFIX${1%/*}/.${1##*/}.gpu-fleet-new
}

# place_file FROM PATH MODE OWNER GROUP
place_file() {
  make_parent "$2" || return 1
  new_name "$2"
  attempt "cannot write $PREFIX$2" copy_private "$1" "$NEW" || { rm -f "$NEW"; return 1; }
  swap_in "$2" "$3" "$4" "$5"
}

copy_private() {
  rm -f "$2" && (umask 077 && cat "$1" >"$2")
}

# swap_in PATH MODE OWNER GROUP: $NEW becomes PATH.
swap_in() {
  if [ -d "$PREFIX$1" ] && [ ! -L "$PREFIX$1" ]; then
    rm -f "$NEW"
    fail internal "$PREFIX$1 is a directory, but a file belongs there; move it away and apply again"
    return 1
  fi
  attempt "cannot set the mode of $PREFIX$1" chmod "$2" "$NEW" || return 1
  [ "$OWNERS" = no ] || attempt "cannot give $PREFIX$1 to $3:$4" chown "$3:$4" "$NEW" || return 1
  # mv would follow a link to a directory and put the file inside.
  [ ! -L "$PREFIX$1" ] || rm -f "$PREFIX$1"
  attempt "cannot write $PREFIX$1" mv -f "$NEW" "$PREFIX$1"
}

make_parent() {
  [ -d "$PREFIX${1%/*}" ] || attempt "cannot make the directory of $PREFIX$1" mkdir -p "$PREFIX${1%/*}"
}

# place_dir PATH MODE OWNER GROUP CONTENTS PART
place_dir() {
  if [ -L "$PREFIX$1" ] && placed_get dir "$1"; then
    rm -f "$PREFIX$1"
  fi
  if [ ! -d "$PREFIX$1" ]; then
    placed_add dir "$1" "$6" "$5"
    attempt "cannot make the directory $PREFIX$1" mkdir -p "$PREFIX$1" || return 1
  fi
  attempt "cannot set the mode of $PREFIX$1" chmod "$2" "$PREFIX$1" || return 1
  [ "$OWNERS" = no ] || attempt "cannot give $PREFIX$1 to $3:$4" chown "$3:$4" "$PREFIX$1"
}

# drop_file PATH: takes away what we placed, and a half-written next version of it.
drop_file() {
  new_name "$1"
  attempt "cannot remove $PREFIX$1" rm -f "$PREFIX$1" "$NEW"
}

# drop_dir PATH CONTENTS: a directory we made. What others put into it stays, and so then does the directory.
drop_dir() {
  if [ -L "$PREFIX$1" ]; then
    rm -f "$PREFIX$1"
  elif [ "$2" = runtime ]; then
    attempt "cannot remove $PREFIX$1" rm -rf "$PREFIX$1"
  else
    rmdir "$PREFIX$1" 2>/dev/null || return 0
  fi
}

# foreign_files DIRECTORY: paths of what lies in it and belongs to no wanted part.
foreign_files() {
  for foreign_entry in "$PREFIX$1"/* "$PREFIX$1"/.*; do
    foreign_path=${foreign_entry#"$PREFIX"}
    case $foreign_path in
      */. | */.. | *.gpu-fleet-new) continue ;;
    esac
    [ -e "$foreign_entry" ] || [ -L "$foreign_entry" ] || continue
    KEY=$foreign_path awk -F "$TAB" '$2 == ENVIRON["KEY"] { found = 1 } END { exit !found }' "$SCRATCH/expected" ||
      printf '%s\n' "$foreign_path"
  done
}
