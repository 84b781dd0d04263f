#!/bin/bash
set -euo pipefail
source "$(dirname "$0")/common.sh"
skip "not written yet"
