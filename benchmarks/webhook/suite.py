"""The suite of the webhook: `python -m benchmarks --only webhook`."""

from benchmarks.figures import Report
from benchmarks.webhook import attack, growth, reviews


def run(report: Report) -> None:
    """Measure reviews, then the process under attack, then a large fleet."""
    reviews.run(report)
    attack.run(report)
    growth.run(report)
