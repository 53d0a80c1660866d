#!/usr/bin/env bash
# Makes the virtual environment FOLDER from requirements.lock and installs this checkout into it.
# PYTHON names the interpreter. If it is not set, the script takes the first of python3.11, python3.12,
# python3.13 and python3 that has a supported version.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1

fail() {
  printf 'make: %s\n' "$@" >&2
  exit 2
}

[[ "$(uname -s)-$(uname -m)" == Linux-x86_64 ]] || fail \
  "this is $(uname -s) on $(uname -m); requirements.lock pins wheels for Linux on x86-64." \
  "Other platforms lack tensorflow-text or system calls that the programs need. Use Linux on x86-64."

supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
python=""
candidates=(python3.11 python3.12 python3.13 python3)
[[ -z "${PYTHON:-}" ]] || candidates=("$PYTHON")
for candidate in "${candidates[@]}"; do
  # Run each candidate: a shim may be on the path although its version is not installed.
  if "$candidate" -c "$supported" 2>/dev/null; then
    python=$candidate
    break
  fi
done
[[ -n "$python" ]] || fail \
  "no Python 3.11, 3.12 or 3.13 found (tried: ${PYTHON:-python3.11 python3.12 python3.13 python3})." \
  "Install one, or give its path: make venv PYTHON=/path/to/python3.11"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail \
  "$python cannot make virtual environments: its venv module is missing." \
  "On Debian and Ubuntu: apt-get install python3-venv"

# An environment with an unsupported Python version cannot be updated, so it is removed.
if [[ -f "$folder/pyvenv.cfg" ]] && ! "$folder/bin/python" -c "$supported" 2>/dev/null; then
  rm -rf "$folder"
elif [[ ! -f "$folder/pyvenv.cfg" && -n "$(ls -A "$folder" 2>/dev/null)" ]]; then
  fail "VENV=$folder is no virtual environment, and it is not empty; nothing was changed." \
    "Give the path of a new folder, or move this one away."
fi
if [[ ! -f "$folder/pyvenv.cfg" ]]; then
  echo "Making $folder with $("$python" --version) ..."
  "$python" -m venv "$folder"
fi
echo "Installing the packages of requirements.lock (3.3 GB on disk; a minute or more) ..."
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.lock
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
  --no-deps --no-build-isolation -e .
