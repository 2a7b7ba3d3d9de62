"""What methods are judged by: the runner, metrics, records, tables and pictures."""
