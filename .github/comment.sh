#!/bin/sh
# Writes FILE as the one comment of `make pr-report` on a pull request: comment.sh NUMBER FILE. It is found by its mark. The last
# comment may be that of another workflow, which comments as the same user.
set -eu
comments=repos/$GITHUB_REPOSITORY/issues
id=$(gh api --paginate "$comments/$1/comments" --jq \
  '.[] | select(.user.type == "Bot" and (.body | startswith("<!-- gpu-fleet pr-report -->"))) | .id' | tail -n 1)
if [ "$id" ]; then
  gh api --silent --method PATCH "$comments/comments/$id" --field body=@"$2"
else
  gh pr comment "$1" --body-file "$2"
fi
