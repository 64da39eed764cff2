# Errors: a function sets the error and returns 1; the caller that knows the part reports it.
# shellcheck shell=sh

no_error() {
  FAIL_CODE='' FAIL_MESSAGE=''
  : >"$SCRATCH/log"
}

# fail CODE MESSAGE: `return 1` with the error set. The codes are listed in README.md.
fail() {
  FAIL_CODE=$1 FAIL_MESSAGE=$2
  return 1
}

error_json() {
  error_line="{\"code\":\"$FAIL_CODE\",\"message\":$(json_text "$FAIL_MESSAGE")"
  [ -s "$SCRATCH/log" ] && error_line="$error_line,\"log\":$(json list <"$SCRATCH/log")"
  printf '%s}' "$error_line"
}

# attempt WHAT COMMAND...: runs it, without its stdout; a failure becomes an error whose code is derived from the command's output. It
# runs in a subshell, which a function given as COMMAND may replace with `exec`: one process less.
attempt() {
  attempt_what=$1
  shift
  # Not through a file: the reason must be known even when the disk is full.
  attempt_said=$("$@" 2>&1 >/dev/null </dev/null) && return 0
  fail_as internal "$attempt_what" "$attempt_said"
}

# fail_as CODE WHAT SAID: an error with the last line of the output; a full disk and a denied write have codes of their own.
fail_as() {
  fail_said=$(printf '%s\n' "$3" | grep -v '^ *$' | tail -n 1)
  case $3 in
    *"No space left on device"* | *"Disk quota exceeded"*) fail disk-full "$2: $fail_said; free some space and apply again" ;;
    *"Permission denied"* | *"Read-only file system"* | *"Operation not permitted"*) fail no-write "$2: $fail_said" ;;
    *) fail "$1" "$2: ${fail_said:-no reason was given}" ;;
  esac
}

# need_space: everything here works with small files, so without space for them no later step can succeed.
need_space() {
  attempt "cannot write below ${SCRATCH%/*}" fill "$SCRATCH/space"
  need_code=$?
  [ ! -s "$SCRATCH/space" ] || : >"$SCRATCH/space"
  return "$need_code"
}

fill() {
  exec head -c 262144 /dev/zero >"$1"
}
