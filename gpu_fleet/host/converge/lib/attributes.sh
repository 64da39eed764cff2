# What a file can have besides content, mode and owner: capabilities, which give a program some of root's privileges, and attributes
# that prevent changing or replacing it. Looked up in one run for all files, since hardly any file has them.
# shellcheck shell=sh

# survey_attributes: $SCRATCH/attributes, PATH TAB what is unusual about it, for everything that the wanted parts place.
survey_attributes() {
  : >"$SCRATCH/attributes"
  [ "$OWNERS" = yes ] || return 0
  {
    # "/path cap_net_raw=ep", in older versions "/path = cap_net_raw+ep"; "----i---------e------- /path". Our paths have no spaces.
    # shellcheck disable=SC2086
    ! command -v getcap >/dev/null || getcap $WANTED_PATHS 2>/dev/null |
      awk '{ print $1 "\thas unexpected capabilities (" $NF ")" }'
    # shellcheck disable=SC2086
    ! command -v lsattr >/dev/null || lsattr -d $WANTED_PATHS 2>/dev/null |
      awk '$1 ~ /[ia]/ { print $2 "\tis locked against changes (chattr +" ($1 ~ /i/ ? "i" : "a") ")" }'
  } >"$SCRATCH/attributes"
}

# attribute_difference PATH: sets DIFF when the path has something unusual.
attribute_difference() {
  [ ! -s "$SCRATCH/attributes" ] || DIFF=$(KEY=$1 awk -F "$TAB" '$1 == ENVIRON["KEY"] { print $2; exit }' "$SCRATCH/attributes")
}

# unlock PATH: clears the attributes that prevent changes to the path and its directory.
unlock() {
  [ -s "$SCRATCH/attributes" ] || return 0
  for unlock_path in "$1" "${1%/*}"; do
    ! grep -q "^$unlock_path$TAB.*chattr" "$SCRATCH/attributes" || chattr -i -a "$unlock_path"
  done
}
