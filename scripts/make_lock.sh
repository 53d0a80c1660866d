#!/usr/bin/env bash
# Writes requirements.lock: the exact version and the hashes of every package that `make venv` installs.
# It is the same for Python 3.11, 3.12 and 3.13, on Linux on x86-64. Also writes requirements-tpu.lock,
# which has the TPU compiler, and requirements-gpu.lock, which has the GPU compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/pip" install --quiet uv

# The resolver writes the platform of pyproject.toml on every line. The header already says it, so sed
# removes it.
platform="python_full_version < '3.14' and platform_machine == 'x86_64' and sys_platform == 'linux'"
{
  echo "# Everything \`make\` installs, pinned: Python 3.11 to 3.13 on Linux, x86-64."
  echo "# Made by \`make lock\` from setup.py; edit that, not this."
  "$tools/bin/uv" pip compile setup.py --extra dev --extra demo --extra cluster \
    --extra ctranslate2 --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
    --no-header --no-annotate --quiet | sed "s/ ; $platform \\\\\$/ \\\\/"
} > "$tools/requirements.lock"
mv "$tools/requirements.lock" requirements.lock

{
  echo "# The TPU compiler, pinned: what \`make test-all\` and \`make tpu\` add to requirements.lock."
  echo "# Made by \`make lock\`; libtpu and jax share a release, so a new jax needs a new libtpu."
  "$tools/bin/uv" pip compile setup.py --extra tpu --constraint requirements.lock --universal \
    --python-version 3.11 --fork-strategy fewest --generate-hashes --no-header --no-annotate \
    --quiet | sed "s/ ; $platform \\\\\$/ \\\\/" | awk '/^[a-z]/ {keep = /^libtpu==/} keep'
} > "$tools/requirements-tpu.lock"
mv "$tools/requirements-tpu.lock" requirements-tpu.lock

# The compiler works without the libraries that only a GPU runs, which are 3 GB.
compiler='jax-cuda13-plugin|jax-cuda13-pjrt|nvidia-cuda-nvcc|nvidia-nvvm'
{
  echo "# The GPU compiler, pinned: what \`make test-all\` and \`make gpu\` add to requirements.lock."
  echo "# Made by \`make lock\`; the compiler and jax share a release, so a new jax needs a new compiler."
  "$tools/bin/uv" pip compile setup.py --extra cuda --constraint requirements.lock --universal \
    --python-version 3.11 --fork-strategy fewest --generate-hashes --no-header --no-annotate \
    --quiet | sed "s/ ; $platform \\\\\$/ \\\\/" | awk "/^[a-z]/ {keep = /^($compiler)==/} keep"
} > "$tools/requirements-gpu.lock"
mv "$tools/requirements-gpu.lock" requirements-gpu.lock
