"""What faults do to a workflow: `python -m faults` kills every stage and counts how it ends."""
