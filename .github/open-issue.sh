#!/bin/sh
# Opens an issue with a link to this run of a workflow. If an issue with the title is open, adds a comment.
# Needs GH_TOKEN. Usage: open-issue.sh <title>
set -eu
export TITLE="$1"
link="$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID"
number=$(gh issue list --limit 1000 --json number,title --jq 'map(select(.title == env.TITLE))[0].number // empty')
if [ -n "$number" ]; then
  gh issue comment "$number" --body "$link"
else
  gh issue create --title "$TITLE" --body "$link"
fi
