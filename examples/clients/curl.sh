#!/bin/sh
# Ask `headstart serve` for a completion, plainly and with speculation, and look at the counts.
set -eu
url="${HEADSTART_URL:-http://127.0.0.1:8000/v1}"
for off in true false; do
  curl --fail --silent --show-error "$url/completions" \
    --header 'content-type: application/json' \
    --header "authorization: Bearer ${HEADSTART_API_KEY:-none}" \
    --data "{\"prompt\": \"one two three one two three\", \"max_tokens\": 40, \"temperature\": 0,
             \"speculation\": {\"off\": $off}}"
  echo
done
