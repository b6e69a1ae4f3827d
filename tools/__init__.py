"""What builds, checks, hands out, grades and serves the course."""
