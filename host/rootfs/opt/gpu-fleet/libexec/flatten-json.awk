# JSON as lines "PATH TAB VALUE", PATH being the keys and positions joined by "/". For the output of GPU tools: strings keep
# their escapes; lines outside of it (warnings, which may begin with a bracket) go to stderr.

function opened(bracket) {
  base[depth + 1] = depth ? base[depth] key[depth] "/" : ""
  depth++
  kind[depth] = bracket
  key[depth] = bracket == "[" ? 0 : ""
  expects_key = bracket == "{"
}

function value(text) {
  if (kind[depth] == "{" && expects_key) key[depth] = text
  else print base[depth] key[depth] "\t" text
}

function token(text) {
  if (text == "{" || text == "[") opened(text)
  else if (!depth) return
  else if (text == "}" || text == "]") depth--
  else if (text == ":") expects_key = 0
  else if (text == ",") {
    if (kind[depth] == "[") key[depth]++
    else expects_key = 1
  } else {
    if (text ~ /^"/) text = substr(text, 2, length(text) - 2)
    value(text)
  }
}

{
  rest = $0
  if (!depth && rest !~ /^[ \t]*([{[][ \t\r]*([][{}"].*)?|,[ \t\r]*)$/) {
    if (rest ~ /[^ \t\r]/) print rest >"/dev/stderr"
    next
  }
  while (match(rest, /"([^"\\]|\\.)*"|[][{}:,]|[^][{}:, \t\r"]+/)) {
    part = substr(rest, RSTART, RLENGTH)
    rest = substr(rest, RSTART + RLENGTH)
    token(part)
  }
}
