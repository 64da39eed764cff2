# Users and groups: one group for users who may read the environment file and enter the directory of the secrets, and one group for each
# secret, so that a program exposed to the network cannot read another program's credentials.
# shellcheck shell=sh

GROUP=gpu-fleet

# secret_group NAME: sets SECRET_GROUP to the group that may read this secret. gpu_fleet/host/part.py has the same rule.
secret_group() {
  SECRET_GROUP=$GROUP-$1
}

has_group() {
  grep -q "^$1:" /etc/group || getent group "$1" >/dev/null 2>&1
}

# user_difference NAME HOME GROUPS: sets DIFF, and REGROUPED where the user's processes run with other groups than they should. Groups
# that do not exist on this host are no difference. Everything else about a user that existed before us is the administrator's choice.
user_difference() {
  DIFF=
  [ "$OWNERS" = yes ] || return 0
  user_entry=$(passwd_entry "$1")
  if [ -z "$user_entry" ]; then
    DIFF=missing
    return 0
  fi
  if is_lost_account passwd user "$1"; then
    DIFF="exists without a record, to be adopted"
    return 0
  fi
  user_has=$(id -Gn "$1" 2>/dev/null)
  user_wants=$(present_groups "$3")
  for user_group in $user_wants; do
    is_among "$user_group" "$user_has" || DIFF="is not in group $user_group"
  done
  [ -z "$DIFF" ] || REGROUPED="user $1"
  placed_get user "$1" || return 0
  for user_group in $user_has; do
    is_among "$user_group" "$1 $user_wants" || { DIFF="is in group $user_group" && REGROUPED="user $1"; }
  done
  IFS=: read -r _ _ _ _ _ user_home user_shell <<END
$user_entry
END
  [ "$user_home" = "$2" ] || DIFF="home is $user_home, not $2"
  no_login_shell
  [ "$user_shell" = "$NO_LOGIN" ] || DIFF="login shell is $user_shell, not $NO_LOGIN"
  id -gn "$1" >/dev/null 2>&1 || DIFF="its group does not exist"
}

# is_lost_account passwd|group user|group NAME: a local account with our name whose record was lost.
is_lost_account() {
  has_our_name "$3" && ! placed_get "$2" "$3" && grep -q "^$3:" "/etc/$1"
}

passwd_entry() {
  if command -v getent >/dev/null; then getent passwd "$1"; else grep "^$1:" /etc/passwd; fi
}

no_login_shell() {
  NO_LOGIN=/usr/sbin/nologin
  [ -x "$NO_LOGIN" ] || NO_LOGIN=/bin/false
}

# is_among WORD "WORD..."
is_among() {
  case " $2 " in
    *" $1 "*) ;;
    *) return 1 ;;
  esac
}

# present_groups GROUP,GROUP...: those that exist on this host, on one line.
present_groups() {
  present=
  for present_group in $(list_words "$1"); do
    has_group "$present_group" && present="$present${present:+ }$present_group"
  done
  printf '%s' "$present"
}

list_words() {
  [ "$1" = - ] || printf '%s\n' "$1" | tr , ' '
}

# place_user NAME HOME GROUPS PART
place_user() {
  will_flush "$PREFIX/etc" # the tools for accounts flush their files, not the directory in which they rename them
  no_login_shell
  ! is_lost_account passwd user "$1" || placed_add user "$1" "$4"
  if ! id -u "$1" >/dev/null 2>&1; then
    placed_add user "$1" "$4"
    place_group=--user-group
    has_group "$1" && place_group="--gid=$1"
    attempt "cannot create user $1" useradd --system --no-create-home "$place_group" --home-dir "$2" --shell "$NO_LOGIN" "$1" || return 1
  fi
  place_groups=$(present_groups "$3" | tr ' ' ,)
  if ! placed_get user "$1"; then
    [ -z "$place_groups" ] || attempt "cannot add user $1 to groups $place_groups" usermod --append --groups "$place_groups" "$1"
    return
  fi
  # useradd writes one file after the other: power that fails in between leaves a user without its group.
  has_group "$1" || attempt "cannot create group $1" groupadd --system --gid "$(id -g "$1")" "$1" || return 1
  attempt "cannot change user $1" usermod --gid "$1" --groups "$place_groups" --shell "$NO_LOGIN" "$1" || return 1
  place_entry=$(passwd_entry "$1" | cut -d : -f 6)
  [ "$place_entry" = "$2" ] || { stop_units "$4" && attempt "cannot change the home of user $1" usermod --home "$2" "$1"; }
}

# stop_units PART: usermod cannot change a home while a process of the user runs. What is stopped here is started later in this run.
stop_units() {
  records "$1" unit
  while IFS=$TAB read -r stop_unit stop_type; do
    service stop "$stop_unit" "$stop_type"
    printf 'start\t%s\t%s\n' "$stop_unit" "$stop_type" >>"$SCRATCH/actions"
  done <"$RECORDS"
}

place_group() {
  will_flush "$PREFIX/etc"
  placed_add group "$1" "$2"
  has_group "$1" || attempt "cannot create group $1" groupadd --system "$1"
}

# drop_user NAME: with its own group, and out of other groups. userdel writes /etc/passwd first and /etc/group last: a run that was
# killed or lost power in between leaves the user's name in groups, and userdel finds nothing to remove any more.
drop_user() {
  will_flush "$PREFIX/etc"
  if id -u "$1" >/dev/null 2>&1; then
    end_processes "$1"
    attempt "cannot remove user $1" userdel "$1" || return 1
  fi
  has_our_name "$1" || return 0
  ! grep -q "^$1:" /etc/group || attempt "cannot remove group $1" groupdel "$1" || return 1
  sed -n "s/^\\([^:]*\\):.*[:,]$1\\(,.*\\)\\{0,1\\}\$/\\1/p" /etc/group >"$SCRATCH/groups"
  while IFS= read -r drop_from; do
    attempt "cannot remove user $1 from group $drop_from" gpasswd --delete "$1" "$drop_from" || return 1
  done <"$SCRATCH/groups"
}

# end_processes USER: of ours, for which userdel would refuse. supervisord ends a program's process group; timeout, and the
# nvidia-smi that it runs, are in one of their own. Containers may have processes under the same number: those are not ours.
end_processes() {
  end_uid=$(id -u "$1")
  end_tries=50
  while [ "$end_tries" -gt 0 ]; do
    end_found=no
    # shellcheck disable=SC2013 # the paths hold no spaces
    for end_pid in $(grep -ls "^Uid:$TAB$end_uid$TAB" /proc/[0-9]*/status); do
      end_pid=${end_pid#/proc/}
      end_pid=${end_pid%/status}
      is_of_prefix "$end_pid" && kill -s KILL "$end_pid" 2>/dev/null && end_found=yes
    done
    [ "$end_found" = yes ] || return 0
    end_tries=$((end_tries - 1))
    pause
  done
}

drop_group() {
  has_group "$1" || return 0
  will_flush "$PREFIX/etc"
  attempt "cannot remove group $1" groupdel "$1"
}
