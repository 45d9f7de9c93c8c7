"""Runs a command and fails unless it ends with the given status:
    status.py STATUS COMMAND..."""
import subprocess
import sys

wanted, *command = sys.argv[1:]
status = subprocess.run(command).returncode
if status != int(wanted):
    sys.exit(f"expected status {wanted}, found {status}")
