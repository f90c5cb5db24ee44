#!/usr/bin/env bash
# Finds or installs the Chromium that `make test-browser` looks at pages with. Repeating it is cheap.
set -euo pipefail

find_browser() {
  for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable chrome; do
    if [ -n "$name" ] && path=$(command -v "$name") && "$path" --version >/dev/null 2>&1; then
      echo "$path"
      return
    fi
  done
  return 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# A mirror may fail once, and another apt-get may be at work.
apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 "$@"
}

if ! path=$(find_browser); then
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    echo "Installing Chromium (a minute, once) ..."
    apt update
    apt install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
  fi
  path=$(find_browser) || {
    echo "The tests of the page need Chromium or Google Chrome, and it cannot be installed from here." >&2
    echo "Install it (Debian: sudo apt-get install chromium; macOS: brew install --cask chromium), or name one: CHROMIUM=/path/to/chrome" >&2
    exit 1
  }
fi
echo "Chromium: $path"
