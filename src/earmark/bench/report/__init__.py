"""What the benches share to report: charts, HTML pages, tables, medians and the progress display."""
