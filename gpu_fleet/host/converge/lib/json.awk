# Turns lines into JSON: -v mode=list|text|object. Bytes that are not UTF-8 become "?", so that the output always parses.

BEGIN {
  for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i
}

# How many bytes the UTF-8 sequence starting at `at` has, 0 when it is not one. Overlong forms and surrogates are not.
function sequence(s, at,    lead, low, high, n, k, c) {
  lead = code[substr(s, at, 1)]
  n = lead >= 194 && lead <= 223 ? 2 : lead >= 224 && lead <= 239 ? 3 : lead >= 240 && lead <= 244 ? 4 : 0
  for (k = 1; k < n; k++) {
    c = code[substr(s, at + k, 1)]
    low = k > 1 ? 128 : lead == 224 ? 160 : lead == 240 ? 144 : 128
    high = k > 1 ? 191 : lead == 237 ? 159 : lead == 244 ? 143 : 191
    if (c < low || c > high) return 0
  }
  return n
}

function quote(s,    out, i, c, n) {
  if (s !~ /[^] !#-[^-~]/) return "\"" s "\"" # printable, no quote and no backslash in it
  out = ""
  for (i = 1; i <= length(s); i++) {
    c = substr(s, i, 1)
    n = code[c]
    if (c == "\"" || c == "\\") out = out "\\" c
    else if (c == "\t") out = out "\\t"
    else if (n < 32 || n == 127) out = out sprintf("\\u%04x", n)
    else if (n < 128) out = out c
    else if ((n = sequence(s, i)) > 0) { out = out substr(s, i, n); i += n - 1 }
    else out = out "?"
  }
  return "\"" out "\""
}

mode == "list" { out = out (NR > 1 ? "," : "") quote($0) }
mode == "object" { at = index($0, "="); out = out (NR > 1 ? "," : "") quote(substr($0, 1, at - 1)) ":" quote(substr($0, at + 1)) }
mode == "text" { line = quote($0); out = out (NR > 1 ? "\\n" : "") substr(line, 2, length(line) - 2) }

END {
  if (mode == "list") print "[" out "]"
  else if (mode == "object") print "{" out "}"
  else print "\"" out "\""
}
