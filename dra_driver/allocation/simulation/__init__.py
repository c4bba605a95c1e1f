"""What happens over time: events in; placements, and the jobs that wait, out."""
