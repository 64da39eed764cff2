# A part's state before a run changed it, so that a part that does not come up can be restored.
#
# $STATE/undo/PART/placed   the part's records before
# $STATE/undo/PART/list     PATH TAB N for each file changed since, N the name of the old one here, `-` when there was none
# It survives an interrupted run, so the next one still knows the last state that worked.
# shellcheck shell=sh

undo_begin() {
  for undo_left in "$STATE/undo"/*.gone "$STATE/undo/$1.new"; do # of runs that were killed
    [ ! -d "$undo_left" ] || rm -rf "$undo_left"
  done
  UNDO=$STATE/undo/$1
  [ -d "$UNDO" ] && return 0
  (umask 077 && mkdir -p "$UNDO.new") && placed_of "$1" >"$UNDO.new/placed" && : >"$UNDO.new/list" && mv "$UNDO.new" "$UNDO"
}

# undo_save PATH: saves the current file, unless that was done already.
undo_save() {
  undo_count=0
  while IFS=$TAB read -r undo_path _; do
    [ "$undo_path" != "$1" ] || return 0
    undo_count=$((undo_count + 1))
  done <"$UNDO/list"
  if [ -d "$PREFIX$1" ] && [ ! -L "$PREFIX$1" ] && ! rmdir "$PREFIX$1" 2>/dev/null; then
    fail internal "$PREFIX$1 is a directory, expected a file; move it away and apply again"
    return 1
  fi
  undo_name=-
  if [ -e "$PREFIX$1" ] || [ -L "$PREFIX$1" ]; then
    undo_name=$undo_count
    # Left by a run that was killed here.
    if [ -e "$UNDO/$undo_name" ] || [ -L "$UNDO/$undo_name" ]; then rm -f "$UNDO/$undo_name"; fi
    # A hard link costs no space for a large binary; we never write into a file in place. Other file systems need a copy.
    ln "$PREFIX$1" "$UNDO/$undo_name" 2>/dev/null || attempt "cannot keep the old $PREFIX$1" cp -pP "$PREFIX$1" "$UNDO/$undo_name" || return 1
  fi
  printf '%s\t%s\n' "$1" "$undo_name" >>"$UNDO/list"
}

# undo_files: restores every saved file.
undo_files() {
  while IFS=$TAB read -r undo_path undo_name; do
    if [ "$undo_name" = - ]; then
      rm -f "$PREFIX$undo_path"
      will_flush "$PREFIX${undo_path%/*}"
    else
      new_name "$undo_path"
      rm -f "$NEW"
      ln "$UNDO/$undo_name" "$NEW" 2>/dev/null || cp -pP "$UNDO/$undo_name" "$NEW"
      commit "$NEW" "$PREFIX$undo_path"
      rm -f "$NEW" # where both are links to the same file, renaming did nothing
    fi
  done <"$UNDO/list"
}

# undo_forget PART: its old state is no longer needed.
undo_forget() {
  UNDO=$STATE/undo/$1
  if [ -d "$UNDO" ] && [ "$1" != host ]; then undo_end; fi
  UNDO=''
}

# undo_end: deletes the saved state atomically, so that an interrupted cleanup does not look like a state to restore.
undo_end() {
  mv "$UNDO" "$UNDO.gone" && rm -rf "$UNDO.gone"
  will_flush "$STATE/undo"
  UNDO=''
}
